// Where messages to other processes lie in the host's memory, and how values get there.
#pragma once

#include <cstdint>

#include <ATen/core/TensorBase.h>

namespace at {
class Tensor;
}

namespace abele::runtime {

/// Of one worker. A device may copy on streams of its own, while the host goes on. Threads: the worker's.
class MessageMemory {
 public:
  virtual ~MessageMemory() = default;
  /// Do values have to be copied here before they are sent, and from here after they were received? No: a dense value
  /// of the host's memory is a message itself.
  virtual bool isApart() const = 0;
  virtual at::Tensor room(int64_t bytes) = 0;
  /// Between a room, or a value of the host, and a value: perhaps later, in the order of calls for values of one
  /// device.
  virtual void copy(const at::Tensor& to, const at::Tensor& from) = 0;
  /// Waits until all copies are done. Throws what kernels of the device threw.
  virtual void settle() = 0;
};

/// Of workers whose values are in the host's memory: copies are done when they return.
MessageMemory& hostMessageMemory();

}  // namespace abele::runtime

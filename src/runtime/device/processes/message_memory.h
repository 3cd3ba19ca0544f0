// Where messages to other processes lie, and how values get there.
#pragma once

#include <cstdint>

#include <ATen/core/TensorBase.h>
#include <c10/core/Device.h>

namespace at {
class Tensor;
}

namespace abele::runtime {

constexpr int64_t kMessageAlignment = 64;  // bytes, of each value in a message
/// The next multiple of it.
constexpr int64_t aligned(int64_t bytes) {
  return (bytes + kMessageAlignment - 1) / kMessageAlignment * kMessageAlignment;
}

/// Of one worker. A device may copy on streams of its own, while the host goes on. Threads: the worker's.
class MessageMemory {
 public:
  virtual ~MessageMemory() = default;
  /// Do values have to be copied here before they are sent, and from here after they were received? No: a dense value
  /// of the same device is a message itself.
  virtual bool isApart() const = 0;
  /// Where messages lie.
  virtual c10::Device device() const { return c10::Device(c10::DeviceType::CPU); }
  virtual at::Tensor room(int64_t bytes) = 0;
  /// Between a room, or a value of the host, and a value: perhaps later, in the order of calls for values of one
  /// device.
  virtual void copy(const at::Tensor& to, const at::Tensor& from) = 0;
  /// Waits until all copies are done, where messages leave in another order than that of the device. Throws what
  /// kernels of the device threw.
  virtual void settle() = 0;
};

/// Of workers whose values are in the host's memory: copies are done when they return.
MessageMemory& hostMessageMemory();

}  // namespace abele::runtime

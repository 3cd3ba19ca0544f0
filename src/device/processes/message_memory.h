// The memory of messages to other processes, and the copies between it and values.
#pragma once

#include <cstdint>

#include <ATen/core/TensorBase.h>
#include <c10/core/Device.h>

namespace at {
class Tensor;
}

namespace abele::device {

constexpr int64_t kMessageAlignment = 64;  // bytes; alignment of each value in a message
/// The next multiple of kMessageAlignment.
constexpr int64_t aligned(int64_t bytes) {
  return (bytes + kMessageAlignment - 1) / kMessageAlignment * kMessageAlignment;
}

/// The message memory of one worker. A device may copy on streams of its own while the host continues. Threads: the
/// worker's.
class MessageMemory {
 public:
  virtual ~MessageMemory() = default;
  /// Whether values must be copied into this memory before they are sent, and out of it after they were received. If
  /// not, a dense value on the same device is sent from, and received into, its own memory.
  virtual bool isApart() const = 0;
  /// The device of the message memory.
  virtual c10::Device device() const { return c10::Device(c10::DeviceType::CPU); }
  virtual at::Tensor room(int64_t bytes) = 0;
  /// Copies between a value and this memory, or a value of the host. The copy may run later; copies of values of one
  /// device run in the order of the calls.
  virtual void copy(const at::Tensor& to, const at::Tensor& from) = 0;
  /// Waits until all copies are done, unless messages are enqueued on the device's stream. Throws the errors of the
  /// device's kernels.
  virtual void settle() = 0;
};

/// The memory of the device that has the values, so that messages are sent from the values themselves. Copies and
/// messages are enqueued on the device's current stream, which is the worker's while its calls run. On the host they
/// are done when the calls return.
class DirectMessages final : public MessageMemory {
 public:
  explicit DirectMessages(c10::Device device) : device_(device) {}

  bool isApart() const override { return false; }
  c10::Device device() const override { return device_; }
  at::Tensor room(int64_t bytes) override;
  void copy(const at::Tensor& to, const at::Tensor& from) override;
  void settle() override {}

 private:
  c10::Device device_;
};

/// For workers whose values are in the host's memory.
MessageMemory& hostMessageMemory();

}  // namespace abele::device

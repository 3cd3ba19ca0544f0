// Messages to other processes that never pass through the host's memory. Used by the backend.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "device/processes/message_memory.h"

namespace abele::device {

/// Sends and receives values in a device's memory as they are. Copies, and the messages of DeviceLinks, are enqueued on
/// the device's current stream, which is the worker's while its calls run.
class DeviceMessages final : public MessageMemory {
 public:
  explicit DeviceMessages(c10::Device device) : device_(device) {}

  bool isApart() const override { return false; }
  c10::Device device() const override { return device_; }
  at::Tensor room(int64_t bytes) override;
  void copy(const at::Tensor& to, const at::Tensor& from) override;
  void settle() override {}

 private:
  c10::Device device_;
};

}  // namespace abele::device

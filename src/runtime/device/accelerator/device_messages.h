// Messages to other processes that never see the host's memory. Used by the backend.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "runtime/device/processes/message_memory.h"

namespace abele::runtime {

/// Values of a device are messages themselves. Everything is in the order of the device's current stream, which is the
/// worker's while its calls run: copies, and the messages of DeviceLinks.
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

}  // namespace abele::runtime

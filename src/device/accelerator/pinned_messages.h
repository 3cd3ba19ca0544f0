// Messages to other processes that pass through pinned memory. Used by the backend.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "device/processes/message_memory.h"

namespace abele::device {

/// Copies values between devices and pinned memory on streams of one worker, one for each device, while the devices
/// compute.
class PinnedMessages final : public MessageMemory {
 public:
  /// streams: one for each device. If there are none, all values are in the host's memory.
  explicit PinnedMessages(const std::vector<c10::Stream>& streams);

  bool isApart() const override { return true; }
  at::Tensor room(int64_t bytes) override;
  void copy(const at::Tensor& to, const at::Tensor& from) override;
  void settle() override;

 private:
  struct Way {
    explicit Way(const c10::Stream& on) : stream(on), copied(on.device_type()) {}
    c10::Stream stream;
    c10::Event copied;  // after the last copy
  };
  std::map<c10::DeviceIndex, Way> ways_;
};

}  // namespace abele::device

#include "device/accelerator/pinned_messages.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

#include "base/error.h"
#include "device/accelerator/staging.h"
#include "kernels/basic.h"

namespace abele::device {

PinnedMessages::PinnedMessages(const std::vector<c10::Stream>& streams) {
  for (const c10::Stream& stream : streams) ways_.try_emplace(stream.device_index(), stream);
}

at::Tensor PinnedMessages::room(int64_t bytes) {
  return ways_.empty() ? at::empty({bytes}, at::kByte) : pinnedBytes(bytes);
}

void PinnedMessages::copy(const at::Tensor& to, const at::Tensor& from) {
  if (to.is_cpu() && from.is_cpu()) {
    // A device may still be filling `from` or reading `to`.
    for (auto& [device, way] : ways_) way.stream.synchronize();
    kernels::copyInto(to, from);
    return;
  }
  const auto way = ways_.find((to.is_cpu() ? from : to).device().index());
  ABELE_CHECK(way != ways_.end(), "a value on ", (to.is_cpu() ? from : to).device().str(), " without a stream");
  const c10::StreamGuard on_its(way->second.stream);
  to.copy_(from, /*non_blocking=*/true);
  way->second.copied.record(way->second.stream);
}

void PinnedMessages::settle() {
  for (auto& [device, way] : ways_) way.copied.synchronize();
}

}  // namespace abele::device

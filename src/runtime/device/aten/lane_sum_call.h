// Sums that take the gradients of all micro-batches side by side at once.
#pragma once

#include "runtime/device/aten/lane_group.h"

namespace abele::runtime {

/// For the parts of abele::accumulate and abele::accumulate_product.
ChooseCalls chooseLaneSum(const LaneGroup& group, const SlotTable& slots, const MakePart& make);

}  // namespace abele::runtime

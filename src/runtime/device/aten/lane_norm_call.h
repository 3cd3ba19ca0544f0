// The backward of layer normalisation for all micro-batches side by side.
#pragma once

#include "runtime/device/aten/lane_group.h"

namespace abele::runtime {

/// For aten::native_layer_norm_backward with gradients of weight or bias: a kernel of ours makes each lane's own, and
/// one call over all rows the gradient of the input.
ChooseCalls chooseLaneNorm(const LaneGroup& group, const SlotTable& slots, const MakePart& make);

}  // namespace abele::runtime

// Counts large float16 gradients for automatic loss scaling. Used by the devices' workers.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "device/aten/gradient_count.h"
#include "device/aten/operator_call.h"

namespace abele::device {

/// Returns a call that also counts its float16 results; `call` itself if it has none or only moves them.
/// large: an int64 on the device; the count is added to it without waiting. Undefined: `count` is increased at once.
/// Source: spec optim.md section 4.
std::unique_ptr<Call> makeCountedCall(std::unique_ptr<Call> call, const exe::Instruction& instruction,
                                      const SlotTable& slots, double edge, GradientCount& count,
                                      const at::Tensor& large = {});

}  // namespace abele::device

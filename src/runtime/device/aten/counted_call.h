// How large float16 gradients are: what automatic loss scaling looks at. Used by the devices' workers.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "runtime/device/aten/gradient_count.h"
#include "runtime/device/aten/operator_call.h"

namespace abele::runtime {

/// The call, and after it a count of its float16 results. Returns call itself where it has none, or only moves them.
/// large: an int64 on the device that the large ones are added to, so that nobody waits; undefined: they are added to
/// `count` at once.
/// Source: spec optim.md section 4.
std::unique_ptr<Call> makeCountedCall(std::unique_ptr<Call> call, const exe::Instruction& instruction,
                                      const SlotTable& slots, double edge, GradientCount& count,
                                      const at::Tensor& large = {});

}  // namespace abele::runtime

// How large float16 gradients are: what automatic loss scaling looks at. Used by cpu_device.cc.
#pragma once

#include <memory>

#include "runtime/device/aten/gradient_count.h"
#include "runtime/device/aten/operator_call.h"

namespace abele::runtime {

/// The call, and after it a count of its float16 results. Returns call itself where it has none, or only moves them.
/// Source: spec optim.md section 4.
std::unique_ptr<Call> makeCountedCall(std::unique_ptr<Call> call, const exe::Instruction& instruction,
                                      const SlotTable& slots, double edge, GradientCount& count);

}  // namespace abele::runtime

// Floating-point exceptions: calls that look at their operands and results. Used by cpu_device.cc.
#pragma once

#include <memory>

#include "runtime/device/aten/operator_call.h"

namespace abele::runtime {

/// The call, and after it a look at what it wrote. Throws E0604 where finite operands gave an infinity (overflow,
/// division by zero), operands without NaN gave a NaN (0 * inf, inf - inf, root of a negative number), or a NaN was
/// compared. Memory that nobody has written yet is not looked at.
/// Source: spec options.md section 4 (enableFloatingPointExceptions).
std::unique_ptr<Call> makeCheckedCall(std::unique_ptr<Call> call, const exe::Executable& executable,
                                      const exe::Instruction& instruction, const SlotTable& slots);

}  // namespace abele::runtime

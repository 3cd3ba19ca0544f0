// Floating-point exceptions: calls that check their operands and results. Used by cpu_device.cc.
#pragma once

#include <memory>

#include "device/aten/operator_call.h"

namespace abele::device {

/// A call that also checks what it wrote. Throws E0604 if finite operands gave an infinity (overflow, division by
/// zero), if operands without NaN gave a NaN (0 * inf, inf - inf, root of a negative number), or if a NaN was compared.
/// Does not check memory that was never written.
/// Source: spec options.md section 4 (enableFloatingPointExceptions).
std::unique_ptr<Call> makeCheckedCall(std::unique_ptr<Call> call, const exe::Executable& executable,
                                      const exe::Instruction& instruction, const SlotTable& slots);

}  // namespace abele::device

// Products of two matrices on the CPU.
#pragma once

#include <memory>

#include "device/aten/operator_call.h"

namespace abele::device {

/// The call of aten::mm, or of aten::addmm without factors, that writes its product to `out`. Null for other operators,
/// and for operands that ATen has to refuse.
std::unique_ptr<Call> makeProductCall(const exe::Instruction& instruction, const SlotTable& slots, const SlotRef& out);

}  // namespace abele::device

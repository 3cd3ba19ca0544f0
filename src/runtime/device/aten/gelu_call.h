// GELU and its gradient on the CPU, by loops that give ATen's bits (runtime/kernels/exact_gelu.h).
#pragma once

#include <memory>

#include "runtime/device/aten/operator_call.h"

namespace abele::runtime {

/// Null: it is another operator, type or device, or its result has another layout.
std::unique_ptr<Call> makeGeluCall(const exe::Instruction& instruction, const SlotTable& slots);

}  // namespace abele::runtime

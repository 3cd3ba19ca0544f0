// One call for several micro-batches side by side, where it has the bits of one call for each.
#pragma once

#include <functional>
#include <memory>

#include "runtime/device/aten/operator_call.h"

namespace abele::runtime {

/// The call of an instruction that stands for others (exe::Instruction::joins), which follow it in memory. Its first
/// run tries both ways on random operands, with the threads of that run; from then on it is the one call if all bits
/// were equal, else the calls of the parts. Null for an operator that does not treat each row alike, whose parts then
/// run by themselves.
/// make: makes the call of an instruction; used by the first run, too.
std::unique_ptr<Call> makeLanesCall(const exe::Instruction* instruction, const SlotTable& slots,
                                    std::function<std::unique_ptr<Call>(const exe::Instruction&)> make);

}  // namespace abele::runtime

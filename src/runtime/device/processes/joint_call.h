// Sums over processes: abele::add_previous and abele::share_sum. Order of arithmetic: docs/replicas.md.
#pragma once

#include <memory>

#include "runtime/device/aten/operator_call.h"
#include "runtime/device/processes/agreement.h"
#include "runtime/device/processes/message_memory.h"

namespace abele::runtime {

bool isJoint(const exe::Instruction& instruction);
/// Of a worker; null: it has none. Processes compare what they have before the first of their sums.
const exe::Instruction* firstJoint(const exe::Executable& executable, int32_t worker);
/// agreement: null where another call compares with the other processes. Everything it is given outlives it.
std::unique_ptr<Call> makeJointCall(const exe::Executable& executable, const exe::Instruction& instruction,
                                    const SlotTable& slots, PeerMessages& peers, Agreement* agreement,
                                    MessageMemory& memory = hostMessageMemory());

}  // namespace abele::runtime

// Sums over processes: abele::add_previous and abele::share_sum. Order of arithmetic: docs/replicas.md.
#pragma once

#include <memory>

#include "device/aten/operator_call.h"
#include "device/processes/agreement.h"
#include "device/processes/message_memory.h"

namespace abele::device {

bool isJoint(const exe::Instruction& instruction);
/// The first sum of a worker over processes, or null. Processes compare their states before it.
const exe::Instruction* firstJoint(const exe::Executable& executable, int32_t worker);
/// agreement: null if another call compares with the other processes. Requires: all arguments outlive the call.
std::unique_ptr<Call> makeJointCall(const exe::Executable& executable, const exe::Instruction& instruction,
                                    const SlotTable& slots, collective::PeerMessages& peers, Agreement* agreement,
                                    MessageMemory& memory = hostMessageMemory());

}  // namespace abele::device

// Instructions that send values to another process, or receive them from it.
#pragma once

#include <memory>

#include "collective/peers.h"
#include "device/aten/arena.h"
#include "device/aten/operator_call.h"
#include "device/processes/message_memory.h"

namespace abele::device {

bool isMessage(const exe::Instruction& instruction);
/// abele::send or abele::receive: all values of one transfer, small ones as one message. on_device: replaces `memory`
/// if the link sends from the device's memory (PeerMessages::takesDevice), which the first step finds out; null: no
/// link does. Requires: peers and memory outlive the call.
std::unique_ptr<Call> makeMessageCall(const exe::Instruction& instruction, const SlotTable& slots,
                                      collective::PeerMessages& peers, MessageMemory& memory = hostMessageMemory(),
                                      MessageMemory* on_device = nullptr);

}  // namespace abele::device

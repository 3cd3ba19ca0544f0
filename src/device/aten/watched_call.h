// A call that shows its results to a watcher. Used by devices if DeviceOptions::watch is set.
#pragma once

#include <memory>

#include "device/aten/operator_call.h"
#include "device/backend.h"

namespace abele::device {

/// index: position of the instruction in its segment. Requires: `watch` outlives the call.
std::unique_ptr<Call> makeWatchedCall(std::unique_ptr<Call> call, const exe::Instruction& instruction, int32_t index,
                                      const SlotTable& slots, Watch& watch);

}  // namespace abele::device

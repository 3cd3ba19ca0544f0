// One call, or a few, for several micro-batches side by side, where they have the bits of one call for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/device/aten/lane_group.h"

namespace abele::runtime {

/// The group that starts at an instruction: one over all lanes and its parts, or parts that add to one sum.
std::optional<LaneGroup> laneGroupAt(const exe::Segment& segment, std::size_t instruction, int64_t lanes);

/// The call of a group. Its first run tries on random operands, with the threads of that run, what takes the place of
/// the parts; from then on it is that if all bits were equal, else the calls of the parts. Null where nothing can take
/// their place, and they run by themselves.
/// make: used by the first run, too.
std::unique_ptr<Call> makeLanesCall(const LaneGroup& group, const SlotTable& slots, MakePart make);

}  // namespace abele::runtime

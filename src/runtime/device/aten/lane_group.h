// Instructions of several micro-batches side by side, and what may take their place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/device/aten/operator_call.h"

namespace abele::runtime {

/// Instructions of a segment that follow each other: what one micro-batch needs, for every lane.
struct LaneGroup {
  const exe::Instruction* joint = nullptr;  // over all lanes (exe::Instruction::joins), ahead of the parts; may be null
  const exe::Instruction* parts = nullptr;  // lane 0 first
  int64_t lanes = 0;
  const exe::Instruction& part(int64_t lane) const { return parts[lane]; }
  std::size_t size() const { return static_cast<std::size_t>(lanes) + (joint ? 1 : 0); }
};

/// Makes the call of one instruction.
using MakePart = std::function<std::unique_ptr<Call>(const exe::Instruction&)>;

/// Of those that take the place of a group. lane: whose state it sees.
struct LaneCall {
  std::unique_ptr<Call> call;
  int64_t lane = 0;
};

/// Called by the first run of a group, with the state of its first lane. Returns: what takes the place of the parts,
/// with every bit; none: the parts stay.
using ChooseCalls = std::function<std::vector<LaneCall>(const CallState&)>;

/// A way to do without the parts: null where it knows at once that it is none for them.
using LaneWay = ChooseCalls (*)(const LaneGroup& group, const SlotTable& slots, const MakePart& make);

}  // namespace abele::runtime

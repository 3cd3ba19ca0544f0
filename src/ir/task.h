// The parts of a step that run as a unit: one (stage, direction) on one micro-batch.
#pragma once

#include <compare>
#include <cstdint>

#include "ir/graph.h"

namespace abele::ir {

struct Task {
  int32_t stage = 0;
  Direction direction = Direction::kForward;
  auto operator<=>(const Task&) const = default;
};

inline Task taskOf(const Node& node) { return {node.stage, node.direction}; }

/// Whether all of task `first` ends before task `second` of the same micro-batch begins, in every schedule.
bool precedes(const Task& first, const Task& second);

}  // namespace abele::ir

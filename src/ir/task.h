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
inline bool precedes(const Task& first, const Task& second) {
  // Weight gradients follow the backward of their own stage; the schedule decides how much later they run.
  if (second.direction == Direction::kWeightGrad && first.direction == Direction::kBackward)
    return first.stage >= second.stage;
  if (first.direction != second.direction) return first.direction < second.direction;
  if (first.direction == Direction::kUpdate || first.direction == Direction::kWeightGrad) return false;
  return first.direction == Direction::kForward ? first.stage < second.stage : first.stage > second.stage;
}

}  // namespace abele::ir

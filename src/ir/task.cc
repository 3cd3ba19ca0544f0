#include "ir/task.h"

namespace abele::ir {

bool precedes(const Task& first, const Task& second) {
  // Weight gradients follow the backward of their own stage; the schedule decides how much later they run.
  if (second.direction == Direction::kWeightGrad && first.direction == Direction::kBackward)
    return first.stage >= second.stage;
  if (first.direction != second.direction) return first.direction < second.direction;
  if (first.direction == Direction::kUpdate || first.direction == Direction::kWeightGrad) return false;
  return first.direction == Direction::kForward ? first.stage < second.stage : first.stage > second.stage;
}

}  // namespace abele::ir

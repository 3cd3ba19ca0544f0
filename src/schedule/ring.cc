#include "schedule/ring.h"

#include <algorithm>
#include <limits>

#include "schedule/simulate.h"

namespace abele::schedule {

RingLengths::RingLengths(const Schedule& schedule, int num_stages, int64_t accumulation)
    : slots_(static_cast<size_t>(num_stages)), micro_batches_(static_cast<size_t>(schedule.micro_batches)) {
  const CostModel one{.stages = std::vector<StageCost>(slots_.size(), {1, 1, 1, 1})};
  for (const auto& actions : simulate(schedule, num_stages, accumulation, one).actions)
    for (const TimedAction& timed : actions) {
      auto& of_task = slots_[static_cast<size_t>(timed.action.stage)][static_cast<size_t>(timed.action.direction)];
      of_task.resize(micro_batches_, -1);
      of_task[static_cast<size_t>(timed.action.micro_batch)] = timed.start_ns;
    }
}

int64_t RingLengths::lengthOf(const std::vector<Task>& users) const {
  std::vector<int64_t> begin(micro_batches_, std::numeric_limits<int64_t>::max()), end(micro_batches_, -1);
  for (const Task& task : users) {
    const auto& of_task = slots_[static_cast<size_t>(task.stage)][static_cast<size_t>(task.direction)];
    for (size_t k = 0; k < of_task.size(); ++k) {
      if (of_task[k] < 0) continue;
      begin[k] = std::min(begin[k], of_task[k]);
      end[k] = std::max(end[k], of_task[k]);
    }
  }
  int64_t length = 1;
  size_t freed = 0;  // the frames of micro-batches below this one are free
  for (size_t k = 0; k < micro_batches_; ++k) {
    while (freed < k && end[freed] < begin[k]) ++freed;
    length = std::max(length, static_cast<int64_t>(k - freed) + 1);
  }
  return length;
}

}  // namespace abele::schedule

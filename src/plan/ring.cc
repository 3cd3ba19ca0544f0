#include "plan/ring.h"

#include <algorithm>
#include <array>
#include <limits>

#include "plan/simulate.h"

namespace abele::plan {
namespace {

constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

// Slots in which the tasks of a stage run, by direction and micro-batch; -1: not at all.
using StageSlots = std::array<std::vector<int64_t>, 4>;

int64_t ringLength(const std::vector<Task>& users, const std::vector<StageSlots>& slots, size_t micro_batches) {
  std::vector<int64_t> begin(micro_batches, kForever), end(micro_batches, -1);
  for (const Task& task : users) {
    const auto& of_task = slots[static_cast<size_t>(task.stage)][static_cast<size_t>(task.direction)];
    for (size_t k = 0; k < of_task.size(); ++k) {
      if (of_task[k] < 0) continue;
      begin[k] = std::min(begin[k], of_task[k]);
      end[k] = std::max(end[k], of_task[k]);
    }
  }
  int64_t length = 1;
  size_t freed = 0;  // micro-batches whose frame is free, from the first on
  for (size_t k = 0; k < micro_batches; ++k) {
    while (freed < k && end[freed] < begin[k]) ++freed;
    length = std::max(length, static_cast<int64_t>(k - freed) + 1);
  }
  return length;
}

}  // namespace

std::vector<int64_t> ringLengths(const Schedule& schedule, int num_stages, int64_t accumulation,
                                 const std::vector<std::vector<Task>>& users) {
  const CostModel one{.stages = std::vector<StageCost>(static_cast<size_t>(num_stages), {1, 1, 1, 1})};
  const Simulation run = simulate(schedule, num_stages, accumulation, one);
  std::vector<StageSlots> slots(static_cast<size_t>(num_stages));
  for (const auto& actions : run.actions)
    for (const TimedAction& timed : actions) {
      auto& of_task = slots[static_cast<size_t>(timed.action.stage)][static_cast<size_t>(timed.action.direction)];
      of_task.resize(static_cast<size_t>(schedule.micro_batches), -1);
      of_task[static_cast<size_t>(timed.action.micro_batch)] = timed.start_ns;
    }
  std::vector<int64_t> lengths;
  for (const auto& tasks : users)
    lengths.push_back(ringLength(tasks, slots, static_cast<size_t>(schedule.micro_batches)));
  return lengths;
}

}  // namespace abele::plan

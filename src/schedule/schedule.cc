// One function for each kind of schedule. It writes the order of each stage on its own. merge() then orders stages that
// share a worker by running all of them in unit time. An order that has been run this way cannot deadlock.
#include <algorithm>

#include "base/error.h"
#include "schedule/schedule_parts.h"
#include "schedule/timetable.h"

namespace abele::schedule {

using ir::Direction;

Schedule merge(const std::vector<std::vector<Action>>& stages, const std::vector<int>& worker_of, int64_t micro_batches,
               int64_t accumulation) {
  ABELE_CHECK(stages.size() == worker_of.size(), stages.size(), " stages, ", worker_of.size(), " entries of worker_of");
  Schedule schedule;
  schedule.micro_batches = micro_batches;
  std::vector<Queue> queues;
  for (size_t s = 0; s < stages.size(); ++s) queues.push_back({worker_of[s], stages[s]});
  schedule.workers.resize(static_cast<size_t>(1 + *std::max_element(worker_of.begin(), worker_of.end())));
  const Timetable table = runUnitTime(queues, static_cast<int>(stages.size()), micro_batches, accumulation);
  ABELE_CHECK(table.complete, "the stages' own orders cannot run together");
  using Placed = std::pair<int64_t, Action>;  // with the slot
  std::vector<std::vector<Placed>> placed(schedule.workers.size());
  for (size_t q = 0; q < queues.size(); ++q)
    for (size_t i = 0; i < queues[q].actions.size(); ++i)
      placed[static_cast<size_t>(queues[q].worker)].emplace_back(table.start[q][i], queues[q].actions[i]);
  for (size_t w = 0; w < placed.size(); ++w) {
    std::ranges::sort(placed[w], {}, &Placed::first);
    for (const Placed& p : placed[w]) schedule.workers[w].push_back(p.second);
  }
  return schedule;
}

void checkCounts(const ScheduleRequest& r) {
  ABELE_CHECK(r.numStages() >= 1 && r.device_iterations >= 1 && r.accumulation >= 1, r.numStages(), " stages, ",
              r.device_iterations, " device iterations, accumulation ", r.accumulation);
}

Schedule repeatGroup(const Schedule& group, int64_t device_iterations) {
  Schedule schedule;
  schedule.micro_batches = group.micro_batches * device_iterations;
  schedule.workers.resize(group.workers.size());
  for (size_t w = 0; w < group.workers.size(); ++w)
    for (int64_t d = 0; d < device_iterations; ++d)
      for (Action a : group.workers[w]) {
        a.micro_batch += static_cast<int32_t>(d * group.micro_batches);
        schedule.workers[w].push_back(a);
      }
  return schedule;
}

Schedule scheduleSharded(const ScheduleRequest& request) {
  checkCounts(request);
  const int num_stages = request.numStages();
  Schedule group;
  group.micro_batches = request.accumulation;
  group.workers.resize(static_cast<size_t>(request.numWorkers()));
  auto run = [&](int stage, Direction direction, int64_t k) {
    group.workers[static_cast<size_t>(request.worker_of[static_cast<size_t>(stage)])].push_back(
        act(stage, direction, k));
  };
  for (int64_t k = 0; k < request.accumulation; ++k) {
    for (int s = 0; s < num_stages; ++s) run(s, Direction::kForward, k);
    for (int s = num_stages - 1; request.training && s >= 0; --s) run(s, Direction::kBackward, k);
  }
  for (int s = 0; request.training && s < num_stages; ++s) run(s, Direction::kUpdate, request.accumulation - 1);
  return repeatGroup(group, request.device_iterations);
}

std::vector<Action> stageOrder(int stage, int64_t ahead, int64_t micro_batches, std::optional<int64_t> late) {
  std::vector<Action> actions;
  for (int64_t k = 0; k < std::min(ahead, micro_batches); ++k) actions.push_back(act(stage, Direction::kForward, k));
  for (int64_t k = 0; k < micro_batches; ++k) {
    if (k + ahead < micro_batches) actions.push_back(act(stage, Direction::kForward, k + ahead));
    actions.push_back(act(stage, Direction::kBackward, k));
    if (late && k >= *late) actions.push_back(act(stage, Direction::kWeightGrad, k - *late));
  }
  for (int64_t k = std::max<int64_t>(0, micro_batches - late.value_or(0)); k < micro_batches; ++k)
    actions.push_back(act(stage, Direction::kWeightGrad, k));
  return actions;
}

namespace {

template <class Ahead>
Schedule pipelined(const ScheduleRequest& request, Ahead&& ahead) {
  checkCounts(request);
  std::vector<std::vector<Action>> stages;
  for (int s = 0; s < request.numStages(); ++s) {
    stages.push_back(stageOrder(s, ahead(s), request.accumulation));
    stages.back().push_back(act(s, Direction::kUpdate, request.accumulation - 1));
  }
  return repeatGroup(merge(stages, request.worker_of, request.accumulation, request.accumulation),
                     request.device_iterations);
}

}  // namespace

// Holds num_stages - s micro-batches in stage s. Source: Narayanan et al. 2019 (PipeDream-flush).
Schedule schedule1F1B(const ScheduleRequest& request) {
  return pipelined(request, [&](int s) { return request.numStages() - 1 - s; });
}

// All forwards of a group, then all backwards. Holds the whole group in every stage. Source: Huang et al. 2019.
Schedule scheduleGPipe(const ScheduleRequest& request) {
  return pipelined(request, [&](int) { return request.accumulation; });
}

Schedule scheduleForward(const ScheduleRequest& request) {
  checkCounts(request);
  std::vector<std::vector<Action>> stages(static_cast<size_t>(request.numStages()));
  for (int s = 0; s < request.numStages(); ++s)
    for (int64_t k = 0; k < request.device_iterations; ++k)
      stages[static_cast<size_t>(s)].push_back(act(s, Direction::kForward, k));
  return merge(stages, request.worker_of, request.device_iterations, 1);
}

}  // namespace abele::schedule

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
  int num_workers = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    queues.push_back({worker_of[s], stages[s]});
    num_workers = std::max(num_workers, worker_of[s] + 1);
  }
  schedule.workers.resize(static_cast<size_t>(num_workers));
  const Timetable table = runUnitTime(queues, static_cast<int>(stages.size()), micro_batches, accumulation);
  ABELE_CHECK(table.complete, "the stages' own orders cannot run together");
  struct Placed {
    int64_t slot;
    Action action;
  };
  std::vector<std::vector<Placed>> placed(schedule.workers.size());
  for (size_t q = 0; q < queues.size(); ++q)
    for (size_t i = 0; i < queues[q].actions.size(); ++i)
      placed[static_cast<size_t>(queues[q].worker)].push_back({table.start[q][i], queues[q].actions[i]});
  for (size_t w = 0; w < placed.size(); ++w) {
    std::sort(placed[w].begin(), placed[w].end(), [](const Placed& a, const Placed& b) { return a.slot < b.slot; });
    for (const Placed& p : placed[w]) schedule.workers[w].push_back(p.action);
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
  const std::vector<int>& worker_of = request.worker_of;
  const int num_stages = request.numStages();
  const int64_t accumulation = request.accumulation;
  const int64_t micro_batches = request.device_iterations * accumulation;
  Schedule schedule;
  schedule.micro_batches = micro_batches;
  int num_workers = 0;
  for (int w : worker_of) num_workers = std::max(num_workers, w + 1);
  schedule.workers.resize(static_cast<size_t>(num_workers));
  auto run = [&](int stage, Direction direction, int64_t k) {
    schedule.workers[static_cast<size_t>(worker_of[static_cast<size_t>(stage)])].push_back(act(stage, direction, k));
  };
  for (int64_t k = 0; k < micro_batches; ++k) {
    for (int s = 0; s < num_stages; ++s) run(s, Direction::kForward, k);
    if (!request.training) continue;
    for (int s = num_stages - 1; s >= 0; --s) run(s, Direction::kBackward, k);
    if ((k + 1) % accumulation == 0)
      for (int s = 0; s < num_stages; ++s) run(s, Direction::kUpdate, k);
  }
  return schedule;
}

// Holds num_stages - s micro-batches in stage s. Source: Narayanan et al. 2019 (PipeDream-flush).
Schedule schedule1F1B(const ScheduleRequest& request) {
  checkCounts(request);
  const int num_stages = request.numStages();
  const int64_t accumulation = request.accumulation;
  std::vector<std::vector<Action>> stages(static_cast<size_t>(num_stages));
  for (int s = 0; s < num_stages; ++s) {
    auto& actions = stages[static_cast<size_t>(s)];
    const int64_t warm_up = std::min<int64_t>(accumulation, num_stages - 1 - s);
    for (int64_t d = 0; d < request.device_iterations; ++d) {
      const int64_t first = d * accumulation, last = first + accumulation - 1;
      for (int64_t k = 0; k < warm_up; ++k) actions.push_back(act(s, Direction::kForward, first + k));
      for (int64_t k = warm_up; k < accumulation; ++k) {
        actions.push_back(act(s, Direction::kForward, first + k));
        actions.push_back(act(s, Direction::kBackward, first + k - warm_up));
      }
      for (int64_t k = accumulation - warm_up; k < accumulation; ++k)
        actions.push_back(act(s, Direction::kBackward, first + k));
      actions.push_back(act(s, Direction::kUpdate, last));
    }
  }
  return merge(stages, request.worker_of, request.device_iterations * accumulation, accumulation);
}

Schedule scheduleForward(const ScheduleRequest& request) {
  checkCounts(request);
  const int num_stages = request.numStages();
  std::vector<std::vector<Action>> stages(static_cast<size_t>(num_stages));
  for (int s = 0; s < num_stages; ++s)
    for (int64_t k = 0; k < request.device_iterations; ++k)
      stages[static_cast<size_t>(s)].push_back(act(s, Direction::kForward, k));
  return merge(stages, request.worker_of, request.device_iterations, 1);
}

// All forwards of a group, then all backwards. Holds the whole group in every stage. Source: Huang et al. 2019.
Schedule scheduleGPipe(const ScheduleRequest& request) {
  checkCounts(request);
  const int num_stages = request.numStages();
  const int64_t accumulation = request.accumulation;
  std::vector<std::vector<Action>> stages(static_cast<size_t>(num_stages));
  for (int s = 0; s < num_stages; ++s) {
    auto& actions = stages[static_cast<size_t>(s)];
    for (int64_t k = 0; k < accumulation; ++k) actions.push_back(act(s, Direction::kForward, k));
    for (int64_t k = 0; k < accumulation; ++k) actions.push_back(act(s, Direction::kBackward, k));
    actions.push_back(act(s, Direction::kUpdate, accumulation - 1));
  }
  return repeatGroup(merge(stages, request.worker_of, accumulation, accumulation), request.device_iterations);
}

}  // namespace abele::schedule

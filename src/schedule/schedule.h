// A schedule: the list of actions of each worker. Each kind of schedule has a function that makes it; verifySchedule()
// checks it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ir/task.h"
#include "schedule/schedules.h"

namespace abele::schedule {

/// Times of one micro-batch in one stage. backward_ns: all of backward except weight_grad_ns.
/// Units: nanoseconds, or any other unit if all stages use the same.
struct StageCost {
  int64_t forward_ns = 1, backward_ns = 1, weight_grad_ns = 1, update_ns = 0;
  bool operator==(const StageCost&) const = default;
};

/// One task of a worker's list. For kUpdate, micro_batch is the last one of the accumulation group.
struct Action {
  int32_t stage = 0;
  ir::Direction direction = ir::Direction::kForward;
  int32_t micro_batch = 0;
  bool operator==(const Action&) const = default;
};
using ir::Task;
struct Schedule {
  std::vector<std::vector<Action>> workers;
  int64_t micro_batches = 0;
  bool operator==(const Schedule&) const = default;
};

/// The input of the functions that make schedules. An update closes each group of `accumulation` micro-batches.
struct ScheduleRequest {
  std::vector<int> worker_of;  // by stage
  int64_t device_iterations = 1;
  int64_t accumulation = 1;
  bool training = true;
  std::vector<StageCost> costs = {};    // by stage, for schedules that order by time; empty: all are equal
  int64_t hop_ns = 0;                   // as in PlanOptions
  std::vector<int64_t> most_held = {};  // as in PlanOptions
  int numStages() const { return static_cast<int>(worker_of.size()); }
  int numWorkers() const { return 1 + *std::max_element(worker_of.begin(), worker_of.end()); }
};

// One function for each row of schedules.def. Every stage runs the micro-batches of a direction in order, so that sums
// and running statistics equal those of eager PyTorch.
#define ABELE_SCHEDULE(kind, name, traits, make, ...) Schedule make(const ScheduleRequest& request);
#include "schedule/schedules.def"

/// Checks that every stage and direction runs each micro-batch once and in order. Forward comes before backward and
/// backward before weight gradients, stages are in order, and updates are between groups. Deadlocks are findings too.
/// Returns all findings; empty = good.
std::vector<std::string> verifySchedule(const Schedule& schedule, int num_stages, int64_t accumulation, bool training);
/// A text chart with one line a worker, "F0 F1 B0 .".
std::string printSchedule(const Schedule& schedule);

}  // namespace abele::schedule

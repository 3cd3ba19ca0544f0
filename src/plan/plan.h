// Pure functions from a lowered graph to tables: placement, schedule, memory. Printed by print(), checked by verify*.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace abele::plan {

enum class ScheduleKind : uint8_t { kSharded, k1F1B, kForward };  // kForward: inference pipeline

struct PlanOptions {
  ScheduleKind schedule = ScheduleKind::k1F1B;
  int64_t device_iterations = 1;
  int64_t accumulation = 1;
  int64_t num_devices = 0;  // devices that exist; 0 = as many as asked for. E0402 beyond
};

/// What a worker does, in order. For kUpdate, micro_batch is the last one of the accumulation group.
struct Action {
  int32_t stage = 0;
  ir::Direction direction = ir::Direction::kForward;
  int32_t micro_batch = 0;
  bool operator==(const Action&) const = default;
};
struct Schedule {
  std::vector<std::vector<Action>> workers;
  int64_t micro_batches = 0;
};

Schedule scheduleSharded(int num_stages, const std::vector<int>& worker_of, int64_t device_iterations,
                         int64_t accumulation, bool training);
Schedule schedule1F1B(int num_stages, const std::vector<int>& worker_of, int64_t device_iterations,
                      int64_t accumulation);
Schedule scheduleForward(int num_stages, const std::vector<int>& worker_of, int64_t device_iterations);
/// Every micro-batch once per stage and direction, forward before backward, stages in order, no deadlock, updates
/// between groups. All findings; empty = good.
std::vector<std::string> verifySchedule(const Schedule& schedule, int num_stages, int64_t accumulation, bool training);
/// A text chart: one line a worker, "F0 F1 B0 .".
std::string printSchedule(const Schedule& schedule);

/// Where a base value lives (views follow their base). stage: whose stash or whose worker's memory it is. A node writes
/// in place exactly where `after` has the placement of `before`.
enum class Home : uint8_t { kNone, kPersistent, kStash, kTransient, kInput };
struct Placement {
  Home home = Home::kNone;
  int32_t stage = -1;
  int64_t offset_bytes = 0;
  bool operator==(const Placement&) const = default;
};

struct Plan {
  PlanOptions options;
  std::vector<int> worker_of;  // by stage
  std::vector<int> device_of;  // by worker
  Schedule schedule;
  std::vector<Placement> placement;       // by value id (meaningful for bases)
  std::vector<int64_t> frames;            // stash ring length by stage
  std::vector<int64_t> stash_bytes;       // one frame, by stage
  std::vector<int64_t> transient_bytes;   // by worker
  std::vector<int64_t> persistent_bytes;  // by worker
  int64_t totalPersistentBytes() const;
};

/// Throws E0401..E0403. Requires form kLowered (training) or kStaged (inference).
Plan makePlan(const ir::Graph& graph, const PlanOptions& options);
std::string print(const Plan& plan);

}  // namespace abele::plan

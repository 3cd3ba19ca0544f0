// Pure functions from a lowered graph to tables: placement, schedule, memory. Printed by print(), checked by verify*.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ir/task.h"
#include "plan/schedules.h"

namespace abele::plan {

/// Times of one micro-batch in one stage. backward_ns: all of it but what weight_grad_ns holds.
/// Units: nanoseconds, or any other as long as it is the same for all.
struct StageCost {
  int64_t forward_ns = 1, backward_ns = 1, weight_grad_ns = 1, update_ns = 0;
  bool operator==(const StageCost&) const = default;
};

/// Where tensors of one use live while no action needs them. off_chip: outside the device's memory (docs/phases.md),
/// unless they have fewer elements than min_elements.
struct TensorLocation {
  bool off_chip = false;
  int64_t min_elements = 2;
  bool operator==(const TensorLocation&) const = default;
};
/// By use. Buffers count as weights; constants stay on the device. Results never depend on it.
struct Locations {
  TensorLocation weights, optimizer_state, accumulators, activations;
  bool fetch_ahead = true;  // bring in what the next action needs while one runs
  bool operator==(const Locations&) const = default;
};

struct PlanOptions {
  ScheduleKind schedule = ScheduleKind::k1F1B;
  int64_t device_iterations = 1;
  int64_t accumulation = 1;
  int64_t num_devices = 0;  // devices that exist; 0 = as many as asked for. E0402 beyond
  /// By stage, for schedules that order by time. Empty: estimateCosts(graph), so that equal programs get equal plans.
  std::vector<StageCost> costs = {};
  Locations locations = {};
  int64_t hop_ns = 0;  // with `costs`: the time until a value of one device can be used on another
  /// For zero-bubble orders, by stage: the most micro-batches between forward and weight gradient, at least 1. Empty:
  /// the schedule's own limits.
  std::vector<int64_t> most_held = {};
  /// Bytes. Each buffer begins at a multiple of it, if it is more than the plan's own alignment. Kernels of
  /// accelerators may depend on addresses, so buffers begin where eager's allocator would let tensors begin.
  int64_t alignment = 1;
  bool operator==(const PlanOptions&) const = default;
};

/// What a worker does, in order. For kUpdate, micro_batch is the last one of the accumulation group.
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

/// What a schedule is made for. An update closes each group of `accumulation` micro-batches.
struct ScheduleRequest {
  std::vector<int> worker_of;  // by stage
  int64_t device_iterations = 1;
  int64_t accumulation = 1;
  bool training = true;
  std::vector<StageCost> costs = {};    // by stage, for those that order by time; empty: all actions equal
  int64_t hop_ns = 0;                   // as in PlanOptions
  std::vector<int64_t> most_held = {};  // as in PlanOptions
  int numStages() const { return static_cast<int>(worker_of.size()); }
};

// One function per row of schedules.def. Every stage takes its micro-batches in order in each direction, so that sums
// and running statistics are those of eager PyTorch.
#define ABELE_SCHEDULE(kind, name, traits, make, ...) Schedule make(const ScheduleRequest& request);
#include "plan/schedules.def"

/// Every micro-batch once per stage and direction, in order; forward before backward before weight gradients, stages in
/// order, no deadlock, updates between groups. All findings; empty = good.
std::vector<std::string> verifySchedule(const Schedule& schedule, int num_stages, int64_t accumulation, bool training);
/// A text chart: one line a worker, "F0 F1 B0 .".
std::string printSchedule(const Schedule& schedule);

/// Where a base value lives (views follow their base). stage: whose stash or whose worker's memory it is. A node writes
/// in place exactly where `after` has the placement of `before`.
enum class Home : uint8_t { kNone, kPersistent, kStash, kTransient, kInput, kRing };
struct Placement {
  Home home = Home::kNone;
  int32_t stage = -1;
  int64_t offset_bytes = 0;
  int32_t off_chip = -1;  // index into Plan::off_chip; -1: on the device
  int32_t ring = -1;      // index into Plan::rings, of kRing
  bool operator==(const Placement&) const = default;
};

enum class TensorUse : uint8_t { kWeights, kOptimizerState, kAccumulators, kActivations };
/// "weights", "state", "sums", "activations".
const char* tensorUseName(TensorUse use);
/// Off-chip tensors of one use and stage: they come to the device and leave it together.
struct OffChipGroup {
  TensorUse use = TensorUse::kWeights;
  int32_t stage = 0;
  int64_t bytes = 0;                                          // activations: of one frame of the stage's ring
  std::vector<std::pair<int32_t, ir::Direction>> users = {};  // tasks that need it
  bool operator==(const OffChipGroup&) const = default;
};

/// A ring of frames beside those of the stages, of two kinds. One holds what transfers bring for a task. If there are
/// more micro-batches than are in use at once, it has one frame more, so that the next can arrive while the task works.
/// The other holds values of a stage for as long as other stages or weight gradients read them.
struct TaskRing {
  Task task;
  bool is_received = false;  // transfers fill it
  int64_t frames = 1;
  int64_t bytes = 0;             // of a frame
  std::vector<Task> users = {};  // tasks that touch a frame; `task` is the first of them in a micro-batch
  bool operator==(const TaskRing&) const = default;
};

struct Plan {
  PlanOptions options;
  std::vector<int> worker_of;  // by stage
  std::vector<int> device_of;  // by worker
  Schedule schedule;
  std::vector<Placement> placement;       // by value id (meaningful for bases)
  std::vector<int64_t> frames;            // stash ring length by stage
  std::vector<std::vector<Task>> users;   // tasks that touch a frame of the ring, by stage
  std::vector<int64_t> stash_bytes;       // one frame, by stage
  std::vector<int64_t> transient_bytes;   // by worker
  std::vector<int64_t> persistent_bytes;  // by worker
  std::vector<OffChipGroup> off_chip;     // in none of the three above
  std::vector<TaskRing> rings;            // those that transfers fill come first
  int64_t totalPersistentBytes() const;
  bool operator==(const Plan&) const = default;
};

/// Throws E0401..E0403. Requires form kLowered (training) or kStaged (inference).
Plan makePlan(const ir::Graph& graph, const PlanOptions& options);
/// Text form and its inverse: docs/plan.md. parse throws UserError E0202 that lists every mistake with its line; what
/// it returns is consistent in itself.
std::string print(const Plan& plan);
Plan parse(std::string_view text);
/// Where a parsed plan does not fit a graph: all findings. Empty for what makePlan makes of the graph.
std::vector<std::string> verify(const Plan& plan, const ir::Graph& graph);
/// Most bytes of each worker's device in use at once: what is always there, and of off-chip groups those that an action
/// and (Locations::fetch_ahead) the next one of its worker need.
std::vector<int64_t> peakDeviceBytes(const Plan& plan);
/// The frames of each off-chip group that a worker's device has at the moment when it has most of them.
std::vector<int64_t> fetchedFrames(const Plan& plan, size_t worker);

}  // namespace abele::plan

// Plans a lowered graph: tables of placement, schedule and memory. print() prints the tables; the verify functions
// check them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ir/task.h"
#include "schedule/schedule.h"
#include "schedule/schedules.h"

namespace abele::plan {

/// Where tensors of one use are while no action needs them. off_chip: outside the device's memory (docs/phases.md),
/// except tensors with fewer than min_elements elements.
struct TensorLocation {
  bool off_chip = false;
  int64_t min_elements = 2;
  bool operator==(const TensorLocation&) const = default;
};
/// The location of each use. Buffers count as weights; constants stay on the device. Results never depend on it.
struct Locations {
  TensorLocation weights, optimizer_state, accumulators, activations;
  bool fetch_ahead = true;  // fetch what the next action needs while the current one runs
  bool operator==(const Locations&) const = default;
};

struct PlanOptions {
  schedule::ScheduleKind schedule = schedule::ScheduleKind::k1F1B;
  int64_t device_iterations = 1;
  int64_t accumulation = 1;
  int64_t num_devices = 0;  // devices that exist; 0 = as many as the program uses. A program that uses more gets E0402
  /// By stage, for schedules that order actions by time. Empty: estimateCosts(graph), so that equal programs get equal
  /// plans.
  std::vector<schedule::StageCost> costs = {};
  Locations locations = {};
  int64_t hop_ns = 0;  // used with `costs`: the time until another device can use a value
  /// For zero-bubble orders: the most micro-batches that each stage holds between forward and weight gradient, at least
  /// 1. Empty: the schedule's own limits.
  std::vector<int64_t> most_held = {};
  /// Bytes. If this exceeds the plan's own alignment, each buffer begins at a multiple of it. Kernels of accelerators
  /// may depend on addresses, so buffers begin where the allocator of eager PyTorch would let tensors begin.
  int64_t alignment = 1;
  /// Devices that take the micro-batches of each worker in turn (docs/data_parallel.md). Rings and transient memory
  /// have frames for all of them.
  int64_t turns = 1;
  bool operator==(const PlanOptions&) const = default;
};
using ir::Task;
inline constexpr std::string_view kTaskLetters = "FBWU";  // by direction
/// "B12": the backward of stage 12.
std::string taskText(const Task& task);

/// The place of a base value; views follow their base. stage: owner of the stash, or a stage of the worker that owns
/// the memory. A node writes in place exactly if `after` has the placement of `before`.
enum class Home : uint8_t { kNone, kPersistent, kStash, kTransient, kInput, kRing };
struct Placement {
  Home home = Home::kNone;
  int32_t stage = -1;
  int64_t offset_bytes = 0;
  int32_t off_chip = -1;  // index into Plan::off_chip; -1: on the device
  int32_t ring = -1;      // for kRing: index into Plan::rings
  bool operator==(const Placement&) const = default;
};

enum class TensorUse : uint8_t { kWeights, kOptimizerState, kAccumulators, kActivations };
/// "weights", "state", "sums", "activations".
const char* tensorUseName(TensorUse use);
/// The off-chip tensors of one use and stage. They move to the device and back together.
struct OffChipGroup {
  TensorUse use = TensorUse::kWeights;
  int32_t stage = 0;
  int64_t bytes = 0;             // for activations: bytes of one frame of the stage's ring
  std::vector<Task> users = {};  // tasks that need the group
  bool operator==(const OffChipGroup&) const = default;
};

/// A ring of frames in addition to those of the stages. There are two kinds. One kind holds the values that transfers
/// copy for a task. If there are more micro-batches than are in use at once, it has an additional frame, so that the
/// next value can arrive while the task works. The other kind holds values of a stage while other stages or weight
/// gradients read them.
struct TaskRing {
  Task task;
  bool is_received = false;  // transfers fill it
  int64_t frames = 1;
  int64_t bytes = 0;             // bytes of a frame
  std::vector<Task> users = {};  // tasks that use a frame; `task` is the first of them in a micro-batch
  bool operator==(const TaskRing&) const = default;
};

struct Plan {
  PlanOptions options;
  std::vector<int> worker_of;  // by stage
  std::vector<int> device_of;  // by worker
  schedule::Schedule schedule;
  std::vector<Placement> placement;       // by value id (meaningful for bases)
  std::vector<int64_t> frames;            // length of each stage's stash ring
  std::vector<std::vector<Task>> users;   // by stage: tasks that use a frame of its ring
  std::vector<int64_t> stash_bytes;       // by stage: bytes of one frame
  std::vector<int64_t> transient_bytes;   // by worker: bytes of one frame; there are turns() frames
  std::vector<int64_t> persistent_bytes;  // by worker
  std::vector<OffChipGroup> off_chip;     // the three fields above do not count these bytes
  std::vector<TaskRing> rings;            // rings that transfers fill come first
  /// Devices that take the micro-batches of each worker in turn: those that get at least one.
  int64_t turns() const { return std::clamp<int64_t>(options.turns, 1, std::max<int64_t>(schedule.micro_batches, 1)); }
  bool operator==(const Plan&) const = default;
};

/// Throws E0401..E0403. Requires: form kLowered (training) or kStaged (inference).
Plan makePlan(const ir::Graph& graph, const PlanOptions& options);
/// The text form and its inverse: docs/plan.md. parse throws UserError E0202 that lists every mistake with its line.
/// The returned plan does not contradict itself.
std::string print(const Plan& plan);
Plan parse(std::string_view text);
/// All places where a parsed plan does not fit a graph. Empty for a plan that makePlan made of the graph.
std::vector<std::string> verify(const Plan& plan, const ir::Graph& graph);
/// The most bytes that each worker's device uses at once: the bytes that are always there, and the off-chip groups that
/// an action needs. With Locations::fetch_ahead, the groups of the worker's next action count too.
std::vector<int64_t> peakDeviceBytes(const Plan& plan);
/// For each off-chip group, the frames on a worker's device when the device holds the most bytes.
std::vector<int64_t> fetchedFrames(const Plan& plan, size_t worker);

}  // namespace abele::plan

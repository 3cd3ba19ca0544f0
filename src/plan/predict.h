// Predicts the times and memory of a schedule, chosen by name, for a chain of stages. Used by tools/abele-sim.cc,
// abele.simulate() and abele::simulate. File format of costs: docs/simulator.md.
#pragma once

#include <string>
#include <vector>

#include "schedule/links.h"
#include "schedule/simulate.h"

namespace abele::plan {

struct MemoryLimits;

/// A chain of stages and where they run.
struct Chain {
  schedule::CostModel costs;
  std::vector<int> device_of;  // by stage; empty: stage s is on device s
  /// Stash and transient memory by stage. split_memory: if weight gradients are split off; sharded_memory: if one stage
  /// works at a time. Empty: the same as costs.memory.
  std::vector<schedule::StageMemory> split_memory, sharded_memory;
  std::vector<schedule::Handover> handovers = {};  // between stages, of every micro-batch
  std::vector<int64_t> gradient_bytes = {};        // by stage: bytes that replicas add up before an update; empty: none
  schedule::Machine machine = {};                  // if it has no links, handovers and sums over replicas take no time
  schedule::Replication replication = {};
};

struct PredictOptions {
  schedule::ScheduleKind schedule = schedule::ScheduleKind::k1F1B;
  bool training = true;
  int64_t device_iterations = 1;
  int64_t accumulation = 1;
  std::vector<int64_t> most_held = {};  // as in PlanOptions
};

struct Prediction {
  PredictOptions options;
  int num_stages = 0;
  std::vector<int> device_of;  // by worker
  schedule::Schedule schedule;
  schedule::Simulation run;
  std::vector<std::vector<schedule::MemoryPoint>> memory;  // by worker
  schedule::Replication replication;
  std::vector<schedule::Transfer> transfers;  // in the order of run.transfers, which has their times
  std::vector<int64_t> reduce_ns;             // by stage; empty: no sums over replicas
  /// The peak of the fullest worker.
  int64_t peakBytes() const;
};

/// Throws E0404 for a chain without stages, or with impossible figures.
void requireCosts(const Chain& chain);

/// chain.costs, with the times of handovers and of sums over replicas on the chain's machine. A value that arrives in a
/// stage takes memory in the stage's frame. Throws E0404 for devices that no link connects.
schedule::CostModel pricedCosts(const Chain& chain);

/// The schedule that makePlan would make, but without a graph. worker_of and costs: by stage.
schedule::Schedule makeSchedule(const PredictOptions& options, const std::vector<int>& worker_of,
                                const std::vector<schedule::StageCost>& costs, int64_t hop_ns = 0);

/// Adds weight gradients to backward, for schedules that do not split them off.
std::vector<schedule::StageCost> wholeBackward(std::vector<schedule::StageCost> costs);

/// Each device is one worker; workers are in the order of their first stages.
struct Workers {
  std::vector<int> worker_of;  // by stage
  std::vector<int> device_of;  // by worker
};
/// devices: by stage.
Workers workersOf(const std::vector<int>& devices);

/// Removes the weight-gradient tasks of stages in which they take no time. costs: by stage.
void dropFreeWeightGradients(schedule::Schedule& schedule, const std::vector<schedule::StageCost>& costs);

/// Schedules that do not split the backward run weight gradients inside it. A stage whose weight gradients take no time
/// has none. Throws E0404 for a chain without stages, for negative figures, and for a schedule that cannot train or
/// infer as requested.
Prediction predict(const Chain& chain, const PredictOptions& options);

/// Joins neighbouring entries into `parts` parts so that the slowest part is as fast as possible. Throws E0404 unless 1
/// <= parts <= entries.
Chain partition(const Chain& chain, int parts);

/// Calls partition() for devices * chunks stages. Stage s runs on device s % devices.
Chain deal(const Chain& chain, int devices, int chunks);

/// Reads {"stages": [{"forward_ns": 5, ...}], "hop_ns": 0}. Throws E0404 with the place of the first fault.
Chain parseChain(const std::string& json);
std::string chainJson(const Chain& chain);

/// The spare bytes of the fullest device; see MemoryLimits::spare.
int64_t spareBytes(const Prediction& prediction, const MemoryLimits& limits);
/// Figures of the whole pipeline and of every device. Includes memory over time if it is known and, with limits,
/// whether each device has enough.
std::string predictionJson(const Prediction& prediction, const MemoryLimits& limits);
/// Chrome's trace format: one row a device, one bar an action, one counter of memory. Open it in chrome://tracing or
/// Perfetto.
std::string chromeTrace(const Prediction& prediction);

}  // namespace abele::plan

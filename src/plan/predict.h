// "What would happen if": a schedule by name over a chain of stages, timed. Behind tools/abele-sim.cc, abele.simulate()
// and abele::simulate. File format of costs: docs/simulator.md.
#pragma once

#include <string>
#include <vector>

#include "plan/links.h"
#include "plan/simulate.h"

namespace abele::plan {

struct MemoryLimits;

/// A chain of stages and where they run.
struct Chain {
  CostModel costs;
  std::vector<int> device_of;  // by stage; empty: stage s on device s
  /// Stash and transient memory where weight gradients are split off, and where one stage works at a time; by stage;
  /// empty: as costs.memory.
  std::vector<StageMemory> split_memory, sharded_memory;
  std::vector<Handover> handovers = {};      // between stages, of every micro-batch
  std::vector<int64_t> gradient_bytes = {};  // by stage, summed up over replicas before an update; empty: none
  Machine machine = {};                      // without links, handovers and sums over replicas take no time
  Replication replication = {};
};

struct PredictOptions {
  ScheduleKind schedule = ScheduleKind::k1F1B;
  bool training = true;
  int64_t device_iterations = 1;
  int64_t accumulation = 1;
  std::vector<int64_t> most_held = {};  // as in PlanOptions
};

struct Prediction {
  PredictOptions options;
  int num_stages = 0;
  std::vector<int> device_of;  // by worker
  Schedule schedule;
  Simulation run;
  std::vector<std::vector<MemoryPoint>> memory;  // by worker
  Replication replication;
  std::vector<Transfer> transfers;  // what run.transfers are of
  std::vector<int64_t> reduce_ns;   // by stage; empty: nothing is summed up over replicas
  /// Largest of all workers.
  int64_t peakBytes() const;
};

/// Throws E0404 for a chain without stages, or with figures that cannot be.
void requireCosts(const Chain& chain);

/// chain.costs with what its handovers and sums over replicas take on its machine. What arrives in a stage takes a
/// place in its frame. Throws E0404 for devices that nothing connects.
CostModel pricedCosts(const Chain& chain);

/// The schedule that makePlan would take, without looking at a graph. worker_of and costs: by stage.
Schedule makeSchedule(const PredictOptions& options, const std::vector<int>& worker_of,
                      const std::vector<StageCost>& costs, int64_t hop_ns = 0);

/// Drops the weight gradients of stages in which they take no time. costs: by stage.
void dropFreeWeightGradients(Schedule& schedule, const std::vector<StageCost>& costs);

/// Schedules without weight gradients of their own run them inside the backward; stages whose weight gradients take no
/// time have none.
/// Throws E0404 for a chain without stages, negative figures, or a schedule that cannot train or infer as asked.
Prediction predict(const Chain& chain, const PredictOptions& options);

/// Joins neighbouring entries into `parts` of them so that the slowest is as fast as can be.
/// Throws E0404 unless 1 <= parts <= entries.
Chain partition(const Chain& chain, int parts);

/// partition() into devices * chunks stages, dealt round: stage s on device s % devices.
Chain deal(const Chain& chain, int devices, int chunks);

/// Reads {"stages": [{"forward_ns": 5, ...}], "hop_ns": 0}. Throws E0404 with the place of the first fault.
Chain parseChain(const std::string& json);
std::string chainJson(const Chain& chain);

/// Bytes that the fullest device has to spare; see MemoryLimits::spare.
int64_t spareBytes(const Prediction& prediction, const MemoryLimits& limits);
/// Figures of the whole and of every device; memory over time where it is known; with limits, what fits.
std::string predictionJson(const Prediction& prediction, const MemoryLimits& limits);
/// Chrome's trace format: one row a device, one bar an action, one counter of memory. chrome://tracing, Perfetto.
std::string chromeTrace(const Prediction& prediction);

}  // namespace abele::plan

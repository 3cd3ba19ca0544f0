// Simulates a schedule before it runs: time, waiting and memory of every worker under given costs. Torch-free. It
// chooses among zero-bubble orders, and tools/abele-sim.cc and abele.simulate() use it. Source: ours.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/links.h"
#include "schedule/schedule.h"

namespace abele::schedule {

/// The ring of frames for some of the values that a stage keeps. If another stage is among the users, the ring has the
/// length of a ring for all values of the stage, as in makePlan.
struct StageRing {
  int64_t bytes = 0;        // bytes of a frame
  std::vector<Task> users;  // tasks that use a frame; the first task of the stage itself makes its contents
  bool operator==(const StageRing&) const = default;
};

struct StageMemory {
  int64_t persistent_bytes = 0;  // weights, sums, optimizer state
  int64_t stash_bytes = 0;       // bytes of a frame: what forward keeps of one micro-batch until its last use
  int64_t transient_bytes = 0;   // memory inside one action; stages of a worker reuse it
  std::vector<Task> users = {};  // tasks that use a frame; empty: the stage's own forward, backward, weight gradients
  /// Rings that replace the stash if they take fewer bytes, and the transient memory in that case.
  std::vector<StageRing> rings = {};
  int64_t apart_transient_bytes = 0;
  bool operator==(const StageMemory&) const = default;
};

struct CostModel {
  std::vector<StageCost> stages;    // by stage; empty: an action takes one time unit, an update none
  std::vector<StageMemory> memory;  // by stage; empty: memory is not simulated
  int64_t hop_ns = 0;               // time until a worker that waits for another worker's action continues
  int64_t action_ns = 0;            // time between two actions of a worker that does not wait
  int64_t host_ns = 0;              // time that every step takes before its first and after its last action
  int cores = 0;                    // cores; if more workers are busy they share the cores evenly; 0: one core each
  /// Transfers between stages in different memories; they replace hop_ns. A link sends one message at a time, in the
  /// order in which they become ready. Workers continue meanwhile.
  std::vector<Transfer> transfers = {};
  /// By stage, the time to sum its gradients over the replicas before its update; empty: no sums.
  std::vector<int64_t> reduce_ns = {};
  bool reduces_early = false;  // Replication::is_early
};

struct TimedAction {
  Action action;
  int64_t start_ns = -1, end_ns = -1;  // -1: never became ready
};

struct WorkerTimes {
  int64_t busy_ns = 0;
  /// Waiting between the first and the last action of each group, without updates, summed over all groups. The papers
  /// call it the bubble.
  int64_t idle_ns = 0;
  int64_t peak_bytes = 0;
};

/// The times of one transfer, summed over all micro-batches.
struct TransferTimes {
  int64_t messages = 0;
  int64_t busy_ns = 0;     // on the link
  int64_t waiting_ns = 0;  // time spent waiting for other transfers on the same link
};

/// A worker's memory from time_ns to the next point.
struct MemoryPoint {
  int64_t time_ns = 0, bytes = 0;
  bool operator==(const MemoryPoint&) const = default;
};

struct Simulation {
  bool complete = true;  // false: the schedule has a deadlock
  int64_t step_ns = 0;
  std::vector<std::vector<TimedAction>> actions;  // in the shape of Schedule::workers
  std::vector<WorkerTimes> workers;
  std::vector<TransferTimes> transfers;  // in the order of CostModel::transfers
  std::vector<int64_t> held;             // by stage: largest number of micro-batches kept for backward at one time
  std::vector<int64_t> frames;           // by stage: length of its first ring; empty if memory is not simulated
  std::vector<bool> is_apart;            // by stage: it uses StageMemory::rings and not the stash
  /// The share of all worker time without work, including the waiting before the first and after the last action.
  double bubble() const;
};

/// Every action starts as soon as its worker is free and its inputs are available. F(s,k) needs F(s-1,k) and the
/// updates of the previous group; B(s,k) needs F(s,k) and B(s+1,k); W(s,k) needs B(s,k); an update needs all of its
/// group. If a transfer copies a value, it must have arrived. If memory is known, the task that fills a ring also needs
/// a free frame in it; rings are as long as makePlan makes them.
Simulation simulate(const Schedule& schedule, int num_stages, int64_t accumulation, const CostModel& costs);

/// The memory in use over time, in order; the first point is at 0. A worker's peak_bytes counts all frames of its
/// rings, whether in use or not.
std::vector<MemoryPoint> memoryOverTime(const Simulation& simulation, const CostModel& costs, size_t worker);

}  // namespace abele::schedule

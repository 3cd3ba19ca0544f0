// What a schedule takes before it runs: time, waiting and memory of every worker under given costs. Torch-free; drives
// the choice among zero-bubble orders, tools/abele-sim.cc and abele.simulate(). Source: ours.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/links.h"
#include "plan/plan.h"

namespace abele::plan {

/// Frames of some of the values that a stage keeps. Where another stage is among the users, there are as many as all
/// values of the stage together would have; so makePlan has it.
struct StageRing {
  int64_t bytes = 0;        // of a frame
  std::vector<Task> users;  // who touches a frame; the first of the stage's own makes what is in it
  bool operator==(const StageRing&) const = default;
};

struct StageMemory {
  int64_t persistent_bytes = 0;  // weights, sums, optimizer state
  int64_t stash_bytes = 0;       // one micro-batch from its forward to the last use of what forward kept: a frame
  int64_t transient_bytes = 0;   // inside one action; stages of a worker take turns
  std::vector<Task> users = {};  // who touches a frame; empty: the stage's own forward, backward, weight gradients
  /// Instead of the stash where they take fewer bytes, and the transient memory then.
  std::vector<StageRing> rings = {};
  int64_t apart_transient_bytes = 0;
  bool operator==(const StageMemory&) const = default;
};

struct CostModel {
  std::vector<StageCost> stages;    // by stage; empty: one unit an action, updates free
  std::vector<StageMemory> memory;  // by stage; empty: none
  int64_t hop_ns = 0;               // until a worker that waits for another's action goes on
  int64_t action_ns = 0;            // between two actions of a worker that waits for nothing
  int64_t host_ns = 0;              // of every step, before its first and behind its last action
  int cores = 0;                    // that workers share, evenly while more of them work; 0: one each
  /// Between stages in different memories, instead of hop_ns. A link carries one message at a time, those that are
  /// ready first going first; workers go on meanwhile.
  std::vector<Transfer> transfers = {};
  /// By stage, until its gradients are summed up over the replicas, before its update; empty: nothing is summed up.
  std::vector<int64_t> reduce_ns = {};
  bool reduces_early = false;  // Replication::is_early
};

struct TimedAction {
  Action action;
  int64_t start_ns = -1, end_ns = -1;  // -1: never became ready
};

struct WorkerTimes {
  int64_t busy_ns = 0;
  /// Waiting between the first and the last action of a group, updates left out, of all groups: the papers' bubble.
  int64_t idle_ns = 0;
  int64_t peak_bytes = 0;
};

/// One transfer over all micro-batches.
struct TransferTimes {
  int64_t messages = 0;
  int64_t busy_ns = 0;     // on the link
  int64_t waiting_ns = 0;  // for others on the same link
};

/// Memory of a worker from time_ns on.
struct MemoryPoint {
  int64_t time_ns = 0, bytes = 0;
  bool operator==(const MemoryPoint&) const = default;
};

struct Simulation {
  bool complete = true;  // false: the schedule has a deadlock
  int64_t step_ns = 0;
  std::vector<std::vector<TimedAction>> actions;  // as Schedule::workers
  std::vector<WorkerTimes> workers;
  std::vector<TransferTimes> transfers;  // as CostModel::transfers
  std::vector<int64_t> held;             // by stage: most micro-batches kept for backward at once
  std::vector<int64_t> frames;           // by stage: length of the stash's, or first, ring; empty without memory
  std::vector<bool> is_apart;            // by stage: it has StageMemory::rings instead of the stash
  /// Share of all worker time that is no work, waiting before the first and behind the last action included.
  double bubble() const;
};

/// Every action starts as soon as its worker is free and what it needs is there: F(s,k) needs F(s-1,k) and the updates
/// of the group before, B(s,k) needs F(s,k) and B(s+1,k), W(s,k) needs B(s,k), an update everything of its group. What
/// a transfer brings has to arrive before. Where memory is known, what makes the values of a ring also needs a free
/// frame of it; rings are as long as makePlan makes them.
Simulation simulate(const Schedule& schedule, int num_stages, int64_t accumulation, const CostModel& costs);

/// What is in use, in time order; the first is at 0. A worker's peak_bytes counts all frames of its rings, in use or
/// not.
std::vector<MemoryPoint> memoryOverTime(const Simulation& simulation, const CostModel& costs, size_t worker);

}  // namespace abele::plan

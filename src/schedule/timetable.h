// For schedule/ and plan/: runs a schedule in unit time under its strictest dependencies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace abele::schedule {

/// Actions that keep their order. Several queues may share a worker, which runs one action a slot.
struct Queue {
  int worker = 0;
  std::vector<Action> actions;
};

/// The slot in which each action runs, in the shape of the queues; -1 if it never becomes ready.
struct Timetable {
  std::vector<std::vector<int64_t>> start;
  bool complete = true;
  int64_t slots = 0;
};

/// Every action takes one slot. F(s,k) follows F(s-1,k) and all updates of the groups before; B(s,k) follows F(s,k) and
/// B(s+1,k); W(s,k) follows B(s,k); an update follows all of its group. A worker with several ready queues takes the
/// update first, then backward before forward, then the lowest micro-batch, then the latest stage.
Timetable runUnitTime(const std::vector<Queue>& queues, int num_stages, int64_t micro_batches, int64_t accumulation);
/// Runs a schedule with one queue a worker.
Timetable runUnitTime(const Schedule& schedule, int num_stages, int64_t accumulation);
/// "F3"; "B1.0" (stage 1, micro-batch 0) if with_stage; "U".
std::string actionText(const Action& action, bool with_stage);

}  // namespace abele::schedule

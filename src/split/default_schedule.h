// Chooses the schedule of a training pipeline if the user chose none. Docs: docs/schedules.md, "The default".
#pragma once

#include <string>
#include <vector>

#include "plan/memory_report.h"
#include "plan/plan.h"
#include "schedule/links.h"

namespace abele::split {

struct DefaultScheduleOptions {
  plan::PlanOptions plan;     // its `schedule` is ignored
  plan::MemoryLimits limits;  // a device without a limit may take about as much as the fullest device takes under 1F1B
  schedule::Machine machine = {};  // values move between stages on its links; without links, all devices share one
                                   // memory
  int cores = 0;                   // cores that the devices share; 0: one core each
  bool all_kinds = true;           // false: `whole` and `split` differ in more than weight gradients, and gpipe is not
                                   // tried
};

struct DefaultSchedule {
  schedule::ScheduleKind schedule = schedule::ScheduleKind::k1F1B;
  std::vector<int64_t> most_held = {};  // the limit under which the schedule fits (PlanOptions)
  std::string reason;                   // one line for people
};

/// Returns 1F1B, unless another schedule fits into the memory and is predicted to be faster by a worthwhile margin.
/// Deterministic: it uses options.plan.costs, or estimates from shapes, and the times of the machine's links. whole:
/// lowered for training. split: the same with separate weight gradients (passes::splitWeightGradient). Throws the
/// errors of makePlan for 1F1B.
DefaultSchedule defaultSchedule(const ir::Graph& whole, const ir::Graph& split, const DefaultScheduleOptions& options);

/// True for several devices and so few actions that the comparison takes no noticeable time. Otherwise sets why_not to
/// the reason.
bool canCompareSchedules(const ir::Graph& whole, const plan::PlanOptions& options, std::string& why_not);

}  // namespace abele::split

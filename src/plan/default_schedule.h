// The schedule of a pipeline in training for which nobody chose one. Docs: docs/schedules.md, "The default".
#pragma once

#include <string>
#include <vector>

#include "plan/links.h"
#include "plan/memory_report.h"
#include "plan/plan.h"

namespace abele::plan {

struct DefaultScheduleOptions {
  PlanOptions plan;       // `schedule` does not matter
  MemoryLimits limits;    // a device without one may take about what the fullest one takes under 1F1B
  Machine machine = {};   // on whose links stages hand over; without links: one memory
  int cores = 0;          // that the devices share; 0: one each
  bool all_kinds = true;  // false: `whole` and `split` differ by more than weight gradients; gpipe is left out
};

struct DefaultSchedule {
  ScheduleKind schedule = ScheduleKind::k1F1B;
  std::vector<int64_t> most_held = {};  // with which it fits (PlanOptions)
  std::string reason;                   // for people, one line
};

/// 1F1B, unless another schedule is predicted to be faster by a margin worth having, within the memory. Deterministic:
/// times are estimates by shape, or options.plan.costs, and those of the machine's links.
/// whole: lowered for training. split: the same with weight gradients apart (passes::splitWeightGradient).
/// Throws what makePlan throws for 1F1B.
DefaultSchedule defaultSchedule(const ir::Graph& whole, const ir::Graph& split, const DefaultScheduleOptions& options);

/// Several devices with so little to schedule that comparing takes no noticeable time; else the reason why not.
bool canCompareSchedules(const ir::Graph& whole, const PlanOptions& options, std::string& why_not);

}  // namespace abele::plan

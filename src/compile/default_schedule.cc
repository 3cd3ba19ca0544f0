#include "compile/default_schedule.h"

#include <algorithm>

#include "compile/placement.h"
#include "passes/pass.h"

namespace abele::compile {

bool leavesSchedule(const ProgramOptions& options) {
  return options.schedule_rule == ScheduleRule::kDefault && options.training &&
         options.strategy == Strategy::kPipelined;
}

Lowered lowerByDefault(const Captured& captured, ProgramOptions options) {
  options.schedule_rule = ScheduleRule::kGiven;
  options.schedule = schedule::ScheduleKind::k1F1B;
  Lowered result{.graph = runPasses(captured, options), .choice = {}};
  if (std::ranges::any_of(result.graph.stages, &ir::Stage::isDivided)) {
    result.choice.reason = "blocks are divided among several devices";
    return result;
  }
  split::DefaultScheduleOptions rules{
      .plan = planOptions(options), .limits = options.device_memory, .machine = machineOf(options)};
  if (!split::canCompareSchedules(result.graph, rules.plan, result.choice.reason)) return result;
  rules.cores = coresOfReplica(options);
  ir::Graph split;
  // The schedule decides which values the last stage recomputes.
  const bool recomputes = options.recompute || options.recompute_to_fit;
  if (recomputes || !options.stages.spaces.empty()) {
    rules.all_kinds = !recomputes;
    options.schedule = schedule::ScheduleKind::kZeroBubble;
    split = runPasses(captured, options);
  } else {
    split = result.graph;
    passes::PassContext context;
    passes::runPipeline(split, context, {.passes = {"split-weight-gradient"}});
  }
  result.choice = split::defaultSchedule(result.graph, split, rules);
  if (schedule::splitsBackward(result.choice.schedule)) result.graph = std::move(split);
  return result;
}

}  // namespace abele::compile

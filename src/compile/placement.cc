#include "compile/placement.h"

#include <algorithm>
#include <tuple>

#include "base/log.h"
#include "passes/pass.h"
#include "plan/cost.h"
#include "split/explain.h"

namespace abele::compile {
bool splitsByItself(const ProgramOptions& options) {
  return options.stages.stages.empty() && options.stages.auto_stage == passes::AutoStage::kAutoSplit;
}

bool choosesSchedule(const ProgramOptions& options) {
  return options.schedule_rule == ScheduleRule::kFastest && options.training &&
         options.strategy == Strategy::kPipelined;
}

int splitDevices(const ProgramOptions& options) {
  return options.stages.devices > 0 ? options.stages.devices
                                    : std::max(1, coresOfReplica(options) / options.stages.group);
}

Pieces piecesOf(const ir::Graph& graph, const ProgramOptions& options, const OptimizerSpec& optimizer, int devices) {
  Pieces pieces{.graph = graph, .chain = {}};
  passes::PassContext context{.optimizer = optimizer.rules};
  context.stages.auto_stage = passes::AutoStage::kAutoSplit;
  passes::runPipeline(pieces.graph, context,
                      {.passes = passes::defaultPipeline({.training = options.training}), .checks_passes = false});
  const bool may_interleave = options.schedule_rule == ScheduleRule::kFastest || schedule::dealsRound(options.schedule);
  pieces.chain = split::splitChain(pieces.graph, may_interleave ? 2 * devices : devices);
  return pieces;
}

schedule::Machine machineOf(const ProgramOptions& options) {
  return options.costs.empty() ? schedule::Machine{} : plan::parseChain(options.costs).machine;
}

split::SplitOptions splitOptions(const ProgramOptions& options, int devices) {
  split::SplitOptions split;
  split.schedule = options.strategy == Strategy::kSharded ? schedule::ScheduleKind::kSharded
                   : options.training                     ? options.schedule
                                                          : schedule::ScheduleKind::kForward;
  split.any_schedule = choosesSchedule(options);
  split.devices = devices;
  split.device_iterations = options.device_iterations;
  split.accumulation = options.gradient_accumulation;
  split.recompute = options.recompute && options.training;
  split.machine = machineOf(options);
  for (int device = 0; device < devices * options.stages.group; ++device) {
    const int64_t limit = options.device_memory.of(device);
    if (limit >= 0 && (split.device_bytes == 0 || limit < split.device_bytes))
      split.device_bytes = std::max<int64_t>(limit, 1);
  }
  return split;
}

void placeBySplit(const ir::Graph& graph, const OptimizerSpec& optimizer, ProgramOptions& options) {
  int devices = splitDevices(options);
  const Pieces pieces = piecesOf(graph, options, optimizer, devices);
  // The user did not choose the number of devices, so it may be smaller.
  if (options.stages.devices == 0) devices = std::min(devices, static_cast<int>(pieces.chain.pieces.size()));
  const split::Split split = split::autoSplit(pieces.chain, splitOptions(options, devices)).front();
  options.stages.cuts = split.node_ids;
  options.stages.devices = devices;
  if (choosesSchedule(options)) {
    options.schedule = split.schedule;
    options.schedule_rule = ScheduleRule::kGiven;
  }
  log::info("AutoSplit: ", split.cuts.size() + 1, " stages on ", devices, " devices under ",
            schedule::scheduleName(split.schedule), ", predicted step ",
            split::millisecondsText(split.prediction.run.step_ns), " ms");
}

std::vector<ScheduleChoice> compareSchedules(const ir::Graph& lowered, const ProgramOptions& options) {
  ir::Graph graph = lowered;
  passes::PassContext context;
  passes::splitWeightGradient(graph, context);
  plan::PlanOptions plan_options{.device_iterations = options.device_iterations,
                                 .accumulation = options.gradient_accumulation};
  const plan::Plan plan = plan::makePlan(graph, plan_options);
  plan::Chain chain{.costs = plan::costModelOf(graph, plan, plan::estimateCosts(graph)), .device_of = {}};
  for (int worker : plan.worker_of) chain.device_of.push_back(plan.device_of[worker]);
  chain.machine = machineOf(options);
  if (chain.machine.hasLinks()) chain.handovers = plan::handoversOf(graph);
  std::vector<ScheduleChoice> choices;
  for (schedule::ScheduleKind schedule : split::trainingSchedules()) {
    const plan::Prediction p = plan::predict(chain, {.schedule = schedule,
                                                     .training = true,
                                                     .device_iterations = options.device_iterations,
                                                     .accumulation = options.gradient_accumulation});
    ScheduleChoice choice{schedule, p.run.step_ns, p.peakBytes()};
    for (size_t w = 0; w < p.device_of.size(); ++w)
      choice.fits = choice.fits && options.device_memory.spare(p.device_of[w], p.run.workers[w].peak_bytes) >= 0;
    choices.push_back(choice);
  }
  std::stable_sort(choices.begin(), choices.end(), [](const ScheduleChoice& a, const ScheduleChoice& b) {
    return std::tuple(!a.fits, a.step_ns, a.peak_bytes) < std::tuple(!b.fits, b.step_ns, b.peak_bytes);
  });
  return choices;
}

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

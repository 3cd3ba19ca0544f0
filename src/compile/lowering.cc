#include "compile/lowering.h"

#include <algorithm>
#include <set>

#include "base/log.h"
#include "compile/device_list.h"
#include "compile/shard_trials.h"
#include "passes/stage_rules.h"
#include "plan/predict.h"

namespace abele::compile {
namespace {

bool isCpuAlone(const ProgramOptions& options) {
  const std::vector<c10::Device> devices = deviceList(options.device);
  return std::all_of(devices.begin(), devices.end(), [](const c10::Device& device) { return device.is_cpu(); });
}

// Bytes. The alignment of memory from torch's allocators for accelerators.
constexpr int64_t kAlignmentOfAccelerators = 512;

int64_t devicesOfStages(const ir::Graph& graph) {
  std::set<int32_t> devices;
  for (const ir::Stage& stage : graph.stages) {
    devices.insert(stage.device);
    devices.insert(stage.group.begin(), stage.group.end());
  }
  return static_cast<int64_t>(devices.size());
}

}  // namespace

plan::PlanOptions planOptions(const ProgramOptions& options) {
  plan::PlanOptions p;
  if (options.strategy == Strategy::kSharded)
    p.schedule = schedule::ScheduleKind::kSharded;
  else
    p.schedule = options.training ? options.schedule : schedule::ScheduleKind::kForward;
  p.device_iterations = options.device_iterations / stepsPerCall(options);
  p.accumulation = options.gradient_accumulation;
  p.most_held = options.most_held;
  p.num_devices = options.num_devices;
  p.turns = options.data_parallel;
  p.locations = options.locations;
  if (!isCpuAlone(options)) p.alignment = kAlignmentOfAccelerators;
  if (!options.costs.empty()) {
    const plan::Chain chain = plan::parseChain(options.costs);
    if (!chain.costs.stages.empty() || !chain.machine.hasLinks()) plan::requireCosts(chain);  // or only a machine
    p.costs = chain.costs.stages;
    p.hop_ns = chain.costs.hop_ns;
  }
  return p;
}

ir::Graph runPasses(const Captured& captured, const ProgramOptions& options) {
  passes::PassContext context{.stages = options.stages, .optimizer = captured.rules};
  context.optimizer.skips_overflow = options.training && options.auto_loss_scaling;
  context.reorders_sums = options.fusion == Fusion::kFast;
  context.stages.ordered = options.strategy == Strategy::kPipelined;
  const plan::PlanOptions planned = planOptions(options);
  const schedule::ScheduleKind schedule = planned.schedule;
  context.recompute = {
      .enabled = options.recompute, .last_stage = schedule::lastStageWaits(schedule), .kept = captured.kept};
  passes::PipelineFacts facts{.training = options.training,
                              .shards = passes::dividesStages(captured.graph, options.stages),
                              .splits_weight_gradients = schedule::splitsBackward(schedule),
                              .fuses_loss = options.fusion != Fusion::kOff && isCpuAlone(options),
                              .approximates = options.fusion == Fusion::kFast && isCpuAlone(options),
                              .fuses_accumulation = options.fusion != Fusion::kOff && options.gradient_accumulation > 1,
                              .has_several_spaces = !options.stages.spaces.empty()};
  int64_t asked = 1;  // devices of a replica that the user asked for
  const auto countDevices = [&](const std::string& pass, const ir::Graph& now) {
    if (pass == "assign-stages") asked = devicesOfStages(now);
  };
  context.gives_same_bits = [&](const ir::Graph& whole, const ir::Graph& parts) {
    const int64_t devices = asked * options.replicas / options.processes.stages;
    return givesSameBits(whole, parts, threadsPerDevice(options, devices), captureDevice(options));
  };
  const auto lower = [&](const passes::RecomputeRules& rules) {
    context.recompute = rules;
    facts.recomputes = rules.enabled;
    ir::Graph graph = captured.graph;
    passes::runPipeline(graph, context,
                        {.passes = passes::defaultPipeline(facts), .after_pass = countDevices, .checks_passes = false});
    return graph;
  };
  passes::RecomputeRules rules = context.recompute;
  if (options.training && options.recompute_to_fit && !options.recompute && options.device_memory.any()) {
    ir::Graph lowered = captured.graph;
    passes::runPipeline(lowered, context,
                        {.passes = passes::defaultPipeline({.training = true}), .checks_passes = false});
    const Recomputed found = recomputeToFit(lowered, captured, options, facts.shards ? Divide(lower) : Divide());
    rules = {.enabled = found.needed, .last_stage = true, .kept = found.kept};
    if (found.needed)
      log::info("recompute to fit: ", found.values, " of ", found.of, " values, about ", found.extra_ns,
                " ns a micro-batch");
  }
  return lower(rules);
}

}  // namespace abele::compile

// Calls of configuration files that build objects. Source: spec options.md section 9.
#include "options/objects.h"

#include <set>

#include "abele/placement.h"
#include "base/error.h"
#include "base/joined.h"
#include "base/nearest.h"
#include "options/store.h"

namespace abele::options {
namespace {

[[noreturn]] void refuse(const std::string& call, const std::vector<OptionValue>& arguments,
                         const std::string& expected) {
  throw OptionError(ErrorCode::E0702,
                    {.what = cat(call, "(", joined(arguments, &OptionValue::text), ")"), .expected = expected},
                    Refused::kCondition);
}

/// The only argument, if it is a T; else null.
template <class T>
const T* only(const std::vector<OptionValue>& arguments) {
  return arguments.size() == 1 ? arguments[0].as<T>() : nullptr;
}

/// A Stage, a block id or a list of block ids.
Stage stageOf(const std::string& call, const OptionValue& value) {
  if (const Stage* stage = value.object<Stage>()) return *stage;
  Stage stage(std::initializer_list<std::string>{});
  if (value.as<std::string>()) {
    stage.blocks.push_back(*value.as<std::string>());
    return stage;
  }
  const OptionList* list = value.as<OptionList>();
  if (!list) refuse(call, {value}, "a Stage, a block id or a list of block ids");
  for (const OptionValue& block : *list) {
    if (!block.as<std::string>())
      refuse(call, call == "Stage" ? *list : OptionList{value}, "block ids, which are text");
    stage.blocks.push_back(*block.as<std::string>());
  }
  return stage;
}

/// Arguments are all stages, or all block ids of one stage.
Phase phaseOf(const std::vector<OptionValue>& arguments) {
  Phase phase{std::initializer_list<Stage>()};
  if (!arguments.empty() && arguments[0].object<Stage>()) {
    for (const OptionValue& each : arguments) {
      if (!each.object<Stage>()) refuse("Phase", arguments, "stages or block ids, not a mixture");
      phase.stages.push_back(*each.object<Stage>());
    }
    return phase;
  }
  phase.stages.push_back(stageOf("Phase", OptionValue(arguments)));
  return phase;
}

ExecutionStrategy stagedStrategy(const std::string& type, const std::vector<OptionValue>& arguments) {
  ExecutionStrategy strategy;
  strategy.pipelined = type == "PipelinedExecution";
  const EnumMember* rule = only<EnumMember>(arguments);
  if (rule && rule->type == "AutoStage") {
    strategy.auto_stage = static_cast<AutoStage>(rule->value);
    return strategy;
  }
  for (const OptionValue& each : arguments) strategy.stages.push_back(stageOf(type, each));
  requireDistinctBlocks(strategy);
  return strategy;
}

ExecutionStrategy phasedStrategy(const std::string& type, const std::vector<OptionValue>& arguments) {
  if (arguments.empty()) refuse(type, arguments, "at least one phase");
  std::vector<Phase> phases;
  for (const OptionValue& each : arguments) {
    const Phase* given = each.object<Phase>();
    const OptionList* list = each.as<OptionList>();
    phases.push_back(given ? *given : phaseOf(list ? *list : OptionList{each}));
  }
  ExecutionStrategy strategy;
  strategy.alternating = type == "ParallelPhasedExecution";
  setPhases(strategy, phases);
  requireDistinctBlocks(strategy);
  return strategy;
}

bool flag(const std::string& name, const std::vector<OptionValue>& arguments) {
  if (arguments.empty()) return true;
  if (arguments.size() > 1 || !arguments[0].as<bool>()) refuse(name, arguments, "true or false");
  return *arguments[0].as<bool>();
}

void setSchedule(ExecutionStrategy& strategy, const std::vector<OptionValue>& arguments) {
  const std::string* name = only<std::string>(arguments);
  std::vector<std::pair<std::string, Schedule>> choices = schedulesByName();
  choices.emplace_back("auto", Schedule::kAuto);
  std::vector<std::string> names;
  for (const auto& [each, schedule] : choices) {
    names.push_back(each);
    if (!name || *name != each) continue;
    strategy.pipeline_schedule = schedule;
    return;
  }
  refuse("schedule", arguments, oneOf(names));
}

void callStrategy(ExecutionStrategy& strategy, const std::string& name, const std::vector<OptionValue>& arguments) {
  const bool phased = !strategy.phase_of.empty();
  if (name == "schedule" && strategy.pipelined) {
    setSchedule(strategy, arguments);
  } else if (name == "costs" && strategy.pipelined) {
    const std::string* costs = only<std::string>(arguments);
    if (!costs) refuse(name, arguments, "JSON text, in Python a dict or JSON text");
    strategy.stage_costs = *costs;
  } else if (name == "recompute" && strategy.pipelined) {
    const std::string* how = only<std::string>(arguments);
    const bool fit = how && *how == "fit";
    if (!fit && !arguments.empty() && !arguments[0].as<bool>()) refuse(name, arguments, "true, false or \"fit\"");
    strategy.recomputes_to_fit = fit;
    strategy.recomputes = !fit && flag(name, arguments);
  } else if (name == "devices" && !phased) {
    const int64_t* count = only<int64_t>(arguments);
    const std::string* how = only<std::string>(arguments);
    const bool measured = how && *how == "measured";
    if (!(measured || (count && *count >= 1 && *count <= 4096)) || strategy.auto_stage != AutoStage::kAutoSplit)
      refuse(name, arguments, "1 or more devices of an AutoStage.AutoSplit, or \"measured\"");
    strategy.split_devices = measured ? kMeasuredDevices : static_cast<int>(*count);
  } else if (name == "useSeparateBackwardPhase" && phased) {
    strategy.separate_backward_phase = flag(name, arguments);
  } else if (name == "sendTensorsOffChipAfterFwd" && strategy.alternating) {
    strategy.tensors_liveness = flag(name, arguments) ? Liveness::kOffChipAfterFwd : Liveness::kAlwaysLive;
  } else if (name == "setTensorsLiveness" && phased && !strategy.alternating) {
    const EnumMember* liveness = only<EnumMember>(arguments);
    if (!liveness || liveness->type != "Liveness") refuse(name, arguments, "a member of Liveness");
    strategy.tensors_liveness = static_cast<Liveness>(liveness->value);
  } else {
    throwUser(ErrorCode::E0701, {.what = cat("a strategy has no ", name, "()"), .at = textOf(strategy)});
  }
}

}  // namespace

void setPhases(ExecutionStrategy& strategy, const std::vector<Phase>& phases) {
  strategy.pipelined = false;
  for (size_t index = 0; index < phases.size(); ++index)
    for (const Stage& stage : phases[index].stages) {
      strategy.stages.push_back(stage);
      strategy.phase_of.push_back(static_cast<int>(index));
    }
}

void requireDistinctBlocks(const ExecutionStrategy& strategy) {
  std::set<std::string> seen;
  for (const Stage& stage : strategy.stages)
    for (const std::string& block : stage.blocks)
      if (!seen.insert(block).second)
        throw OptionError(ErrorCode::E0702,
                          {.what = cat("block \"", block, "\" is in two stages"),
                           .expected = "each block in one stage",
                           .remedy = "remove it from one"},
                          Refused::kCondition);
}

OptionMap backendOptions(const ExecutionStrategy& strategy) {
  if (strategy.phase_of.empty()) return {{"execution_mode", OptionValue(int64_t{strategy.pipelined ? 0 : 1})}};
  return {{"execution_mode", OptionValue(int64_t{strategy.alternating ? 2 : 3})},
          {"separate_backward_phase", OptionValue(strategy.separate_backward_phase)},
          {"tensors_liveness", OptionValue(static_cast<int64_t>(strategy.tensors_liveness))}};
}

OptionObject makeObject(const std::string& type, const std::vector<OptionValue>& arguments) {
  if (type == "TensorLocationSettings") {
    if (!arguments.empty()) refuse(type, arguments, "no arguments");
    return TensorLocationSettings();
  }
  if (type == "Stage") return stageOf(type, OptionValue(arguments));
  if (type == "Phase") return phaseOf(arguments);
  if (type == "PipelinedExecution" || type == "ShardedExecution") return stagedStrategy(type, arguments);
  if (type == "SerialPhasedExecution" || type == "ParallelPhasedExecution") return phasedStrategy(type, arguments);
  throwUser(ErrorCode::E0701, {.what = cat("options cannot be made from ", type, "()"),
                               .expected = "Stage, Phase, an execution strategy or TensorLocationSettings"});
}

void callMethod(OptionObject& object, const std::string& name, const std::vector<OptionValue>& arguments,
                const std::vector<std::pair<std::string, OptionValue>>& named) {
  std::vector<OptionValue> all = arguments;
  for (const auto& [key, value] : named) all.push_back(value);  // each call takes one argument
  if (auto* settings = std::get_if<TensorLocationSettings>(&object)) {
    const std::string path = cat("TensorLocationSettings.", name);
    ABELE_REQUIRE(findRow(path), E0701, {.what = cat("there is no ", path), .remedy = didYouMean(path, setterPaths())});
    return setLocation(OptionsAccess::values(*settings), path, std::move(all));
  }
  if (auto* strategy = std::get_if<ExecutionStrategy>(&object)) return callStrategy(*strategy, name, all);
  if (auto* stage = std::get_if<Stage>(&object); stage && name == "ipu") {
    if (!only<int64_t>(all)) refuse(name, all, "an integer");
    stage->ipu(static_cast<int>(*only<int64_t>(all)));
    return;
  }
  throwUser(ErrorCode::E0701, {.what = cat("there is no method ", name, "()")});
}

}  // namespace abele::options

// Translates a user's options into the form that the compiler and the devices need.
#include "compile/from_options.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>

#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/joined.h"
#include "compile/device_list.h"
#include "options/input_shares.h"
#include "options/notes.h"
#include "options/rows.h"

namespace abele::compile {
namespace {

OutputMode resolve(abele::OutputMode mode, bool training) {
  switch (mode) {
    case abele::OutputMode::kFinal: return OutputMode::kFinal;
    case abele::OutputMode::kEveryN: return OutputMode::kEveryN;
    case abele::OutputMode::kAll: return OutputMode::kAll;
    case abele::OutputMode::kSum: return OutputMode::kSum;
    case abele::OutputMode::kDefault: break;
  }
  return training ? OutputMode::kFinal : OutputMode::kAll;
}

void requirePositive(int64_t value, const char* name) {
  ABELE_REQUIRE(value >= 1, E0702, {.what = cat(name, " is ", value), .expected = "1 or more"});
}

OutputRank outputRankOf(const std::string& word) {
  return word == "first"   ? OutputRank::kFirst
         : word == "last"  ? OutputRank::kLast
         : word == "owner" ? OutputRank::kOwner
                           : OutputRank::kAll;
}

/// Gives a field the value of an option or expert setting, where it has one. Throws E0702 if a default was taken away.
template <class T>
void take(const Options::Values& values, const char* name, T& field) {
  const options::OptionValue* found = values.find(name);
  if (!found) found = values.expert(name);
  if (!found) {
    ABELE_REQUIRE(std::ranges::find(options::optionDefaults(), name, &options::OptionDefault::key) ==
                      options::optionDefaults().end(),
                  E0702, {.what = cat("option ", name, " has no value")});
    return;
  }
  if constexpr (std::is_integral_v<T> || std::is_enum_v<T> || options::IsOptional<T>::value) {
    if (const auto number = options::integer<int64_t>(*found)) field = static_cast<T>(*number);
  } else if (const T* value = found->as<T>()) {
    field = *value;
  }
}

bool isOn(const Options::Values& values, const char* name) {
  bool on = false;
  take(values, name, on);
  return on;
}

void requireLossScaling(const ProgramOptions& session) {
  const auto require = [](bool holds, const char* name, double value) {
    ABELE_REQUIRE(holds, E0702, {.what = cat(name, " is ", value), .expected = "between 0 and 1"});
  };
  const double edge = session.loss_scale_edge, threshold = session.loss_scale_threshold;
  require(edge > 0 && edge < 1, "binEdgeLocation", edge);
  require(threshold >= 0 && threshold <= 1, "thresholdUpperCountProportion", threshold);
  requirePositive(session.loss_scale_period, "updatePeriod");
}

void setAnchors(const Options::Values& values, bool training, ProgramOptions& session) {
  for (const auto& [name, entry] : values.map("anchored_tensors")) {
    const options::OptionList& parts = *entry.as<options::OptionList>();
    const bool as_model = *parts[1].as<bool>();
    const auto mode = static_cast<abele::OutputMode>(parts[2].as<options::EnumMember>()->value);
    session.anchors.push_back({name, *parts[0].as<std::string>(),
                               as_model ? session.output_mode : resolve(mode, training),
                               as_model ? session.output_period : *parts[3].as<int64_t>()});
  }
}

passes::AutoStage ruleOf(AutoStage rule) {
  switch (rule) {
    case AutoStage::kSameAsIpu: return passes::AutoStage::kSameAsIpu;
    case AutoStage::kAutoIncrement: return passes::AutoStage::kAutoIncrement;
    case AutoStage::kAutoSplit: return passes::AutoStage::kAutoSplit;
  }
  throwUser(ErrorCode::E0702, {.what = cat("there is no rule ", static_cast<int>(rule))});
}

void setStrategy(const ExecutionStrategy& strategy, ProgramOptions& session) {
  session.strategy = strategy.pipelined ? Strategy::kPipelined : Strategy::kSharded;
  session.recompute = strategy.recomputes;
  session.costs = strategy.stage_costs;
  session.recompute_to_fit = strategy.recomputes_to_fit;
  session.schedule_rule = strategy.pipeline_schedule == Schedule::kAuto      ? ScheduleRule::kFastest
                          : strategy.pipeline_schedule == Schedule::kDefault ? ScheduleRule::kDefault
                                                                             : ScheduleRule::kGiven;
  if (session.schedule_rule == ScheduleRule::kGiven) session.schedule = kindOf(strategy.pipeline_schedule);
  session.stages.auto_stage = ruleOf(strategy.auto_stage);
  session.stages.devices = strategy.split_devices;
  const std::vector<int>& phase_of = strategy.phase_of;
  for (size_t i = 0; i < strategy.stages.size(); ++i) {
    const Stage& stage = strategy.stages[i];
    session.stages.stages.push_back(
        {.blocks = stage.blocks, .ipu = stage.device_index, .phase = phase_of.empty() ? -1 : phase_of.at(i)});
  }
  session.stages.alternating = strategy.alternating;
}

const TensorLocationSettings& settingsOf(const char* key, const options::OptionValue& value) {
  const auto* settings = value.object<TensorLocationSettings>();
  ABELE_REQUIRE(settings, E0702, {.what = cat("option ", key, " is ", value.text())});
  return *settings;
}

/// The location of the tensors of a use between tasks. Phased strategies put all of them off chip, activations only if
/// their liveness lets them leave. A location that the user set takes precedence.
plan::TensorLocation locationOf(const Options::Values& values, const char* key, bool off_chip) {
  plan::TensorLocation location{.off_chip = off_chip};
  const options::OptionValue* found = values.find(key);
  if (!found) return location;
  const auto& settings = settingsOf(key, *found);
  location.off_chip = !settings.onChip().value_or(!off_chip);
  location.min_elements = settings.minElementsForOffChip().value_or(location.min_elements);
  return location;
}

/// Whether tensors of this use are distributed over the replicas, and the smallest number of elements for it.
std::pair<bool, int64_t> shardingOf(const Options::Values& values, const char* key) {
  const options::OptionValue* found = values.find(key);
  if (!found) return {false, exe::kMinElementsForSharding};
  const auto& settings = settingsOf(key, *found);
  return {settings.useReplicatedTensorSharding().value_or(false),
          settings.minElementsForReplicatedTensorSharding().value_or(exe::kMinElementsForSharding)};
}

void setLocations(const Options::Values& values, ProgramOptions& session) {
  const auto weights = shardingOf(values, "location_weight"), states = shardingOf(values, "location_optimizer");
  session.sharding = {weights.first, states.first, weights.second, states.second};
  const bool phased = !values.strategy.phase_of.empty();
  const Liveness liveness = values.strategy.tensors_liveness;
  session.locations = {
      .weights = locationOf(values, "location_weight", phased),
      .optimizer_state = locationOf(values, "location_optimizer", phased),
      .accumulators = locationOf(values, "location_accumulator", phased),
      .activations = locationOf(values, "location_activation", phased && liveness != Liveness::kAlwaysLive),
      .fetch_ahead = liveness != Liveness::kOffChipAfterFwdNoOverlap};
  session.device_memory.every = values.get<std::optional<int64_t>>("device_memory_limit").value_or(-1);
  if (const options::OptionValue* limits = values.find("device_memory_limit");
      limits && limits->as<options::OptionMap>())
    for (const auto& [device, bytes] : *limits->as<options::OptionMap>())
      session.device_memory.of_device[static_cast<int>(options::deviceOf(device))] = *bytes.as<int64_t>();
}

/// The engine options of the values, overridden by those of POPLAR_ENGINE_OPTIONS.
std::map<std::string, std::string> engineOptions(const Options::Values& values) {
  std::map<std::string, std::string> result;
  if (const options::OptionValue* engine = values.expert("engineOptions"))
    for (const auto& [name, value] : *engine->as<options::OptionMap>())
      result[name] = value.as<std::string>() ? *value.as<std::string>() : value.text();
  const std::string text = environmentText("POPLAR_ENGINE_OPTIONS");
  if (text.empty()) return result;
  const auto given = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  ABELE_REQUIRE(given.is_object(), E0702,
                {.what = cat("environment variable POPLAR_ENGINE_OPTIONS is '", text, "'"),
                 .expected = "a JSON object such as {\"autoReport.all\":\"true\"}"});
  for (const auto& [name, value] : given.items()) {
    const std::string text_of_value = value.is_string() ? value.get<std::string>() : value.dump();
    const auto [entry, is_new] = result.try_emplace(name, text_of_value);
    if (is_new || entry->second == text_of_value) continue;
    entry->second = text_of_value;
    options::note(log::Level::kWarn, cat("POPLAR_ENGINE_OPTIONS sets ", name, ": it wins over the options"));
  }
  return result;
}

void setProfile(const Options::Values& values, ProgramOptions& session) {
  constexpr const char* kSwitches[] = {"autoReport.outputGraphProfile", "autoReport.outputExecutionProfile"};
  const std::map<std::string, std::string> engine = engineOptions(values);
  const auto get = [&](const std::string& name, const std::string& fallback) {
    const auto it = engine.find(name);
    return it == engine.end() ? fallback : it->second;
  };
  const auto isTrue = [&](const std::string& name, bool otherwise) {
    const std::string text = get(name, otherwise ? "true" : "false");
    ABELE_REQUIRE(text == "true" || text == "false", E0702,
                  {.what = cat("engine option ", name, " is ", text),
                   .expected = "true or false",
                   .remedy = cat("set ", name, " to \"true\" or \"false\"")});
    return text == "true";
  };
  const bool everything = isTrue("autoReport.all", false);
  size_t num_on = 0;
  for (const char* name : kSwitches) num_on += isTrue(name, everything) ? 1 : 0;
  const std::string runs = get("autoReport.executionProfileProgramRunCount", "2");
  const char* const end = runs.data() + runs.size();
  const auto [parsed, error] = std::from_chars(runs.data(), end, session.profile.runs);
  ABELE_REQUIRE(error == std::errc() && parsed == end, E0702,
                {.what = cat("engine option autoReport.executionProfileProgramRunCount is ", runs),
                 .expected = "an integer",
                 .remedy = "set it to \"2\""});
  if (num_on == 0) return;
  const auto name = values.get<std::optional<std::string>>("model_name");
  const std::string folder = get("autoReport.directory", "");
  session.profile.path = cat(folder.empty() ? "." : folder, "/",
                             name.value_or(session.training ? "training" : "inference"), "/profile.pop");
}

/// Throws for settings of the target that contradict each other.
void requireTarget(const Options::Values& values) {
  const bool offline = values.find("ipu_version") != nullptr;
  const bool cycles = isOn(values, "instrumentWithHardwareCycleCounter");
  for (const auto& [name, is_used] :
       std::initializer_list<std::pair<const char*, bool>>{{"the IPU model", offline && usesModel(values)},
                                                           {"useIpuId", offline && values.find("ipu_id")},
                                                           {"logCycleCount", offline && cycles}})
    ABELE_REQUIRE(!is_used, E0702,
                  {.what = cat("useOfflineIpuTarget and ", name, " cannot be combined"), .remedy = "remove one"});
  ABELE_REQUIRE(
      !cycles || !usesModel(values), E0702,
      {.what = "logCycleCount with the IPU model, which has no cycle counter", .remedy = "remove one of the two"});
}

/// Throws for variables whose value is not allowed. Source: spec environment.md section 3.
void requireEnvironment(const Options::Values& values) {
  for (const char* name : {"POPTORCH_WAIT_FOR_IPU", "POPTORCH_EXPORT_PROTO_AS_BINARY", "POPTORCH_MAX_GRAPH_LEN"})
    environmentInteger(name, 0);
  if (!usesModel(values)) return;
  const std::string given = environmentText("POPTORCH_IPU_MODEL_VERSION");
  const std::string version = given.empty() ? "ipu2" : given;
  ABELE_REQUIRE(
      version == "ipu1" || version == "ipu2" || version == "ipu21", E0702,
      {.what = cat("environment variable POPTORCH_IPU_MODEL_VERSION is ", version), .expected = "ipu1, ipu2 or ipu21"});
  options::note(log::Level::kInfo, cat("the model is compiled for the modelled device (", version, ")"));
}

/// Sets the folder of compiled programs. Processes that share the folder compile one after another.
void setCache(const Options::Values& values, ProgramOptions& session) {
  const options::OptionValue* caches = values.expert("enableEngineCaching");
  const options::OptionValue* path = values.expert("cachePath");
  const bool is_on = path && !path->as<std::string>()->empty() && (!caches || *caches->as<bool>());
  const bool several = session.processes.count > 1;
  if (is_on && usesModel(values)) {
    options::note(log::Level::kWarn, "enableExecutableCaching: executables for the simulator are not cached");
  } else if (is_on) {
    session.cache_path = *path->as<std::string>();
    session.cache_lock = several;
  } else if (several) {
    options::note(log::Level::kWarn,
                  "every process compiles: enableExecutableCaching(path) lets only the first one do it");
  }
}

// With devicesPerProcess, replicationFactor counts the replicas of all processes.
void setStageProcesses(const Options::Values& values, ProgramOptions& session) {
  ProcessOptions& processes = session.processes;
  const auto chosen = values.get<int64_t>("processes_per_replica");
  processes.devices = processes.count > 1 ? values.get<int64_t>("devices_per_process") : 0;
  ABELE_REQUIRE(processes.devices > 0 || chosen <= 1 || processes.count == 1, E0702,
                {.what = cat("processesPerReplica(", chosen, ") without devicesPerProcess"),
                 .remedy = "set the number of devices of a process: devicesPerProcess(devices)"});
  if (processes.devices == 0) return;
  const int64_t replicas = session.replicas;
  const options::InputShares shares = options::inputSharesOf(values);
  ABELE_REQUIRE(
      processes.count % shares.processes == 0 && replicas % shares.count == 0 && chosen <= processes.count, E0702,
      {.what = cat(processes.count, " processes cannot share ", replicas, " replicas, each in ", chosen,
                   " of them, evenly"),
       .found = cat("processesPerReplica ", chosen, ", replicationFactor ", replicas),
       .expected = "a divisor of the number of processes, and replicas that are a multiple of the quotient",
       .remedy =
           cat("leave processesPerReplica out, which means ", processes.count / std::gcd(processes.count, replicas))});
  ABELE_REQUIRE(
      shares.processes == 1 || processes.devices % shares.replicas == 0, E0702,
      {.what = cat("a process holds parts of ", shares.replicas, " replicas, on ", processes.devices, " devices"),
       .found =
           cat(processes.count, " processes, replicationFactor ", replicas, ", devicesPerProcess ", processes.devices),
       .expected = cat("devicesPerProcess: a multiple of ", shares.replicas),
       .remedy = "use a number of processes that divides the replicas or is a multiple of them, so that each "
                 "holds whole replicas, or a part of one"});
  processes.stages = shares.processes;
  session.replicas = shares.replicas;
}

// Devices of a process share its memory, except accelerators and programs that ask for more transfers.
void setSpaces(const Options::Values& values, ProgramOptions& session) {
  const bool separates = isOn(values, "separate_memory");
  std::vector<int>& spaces = session.stages.spaces;
  spaces = spacesOf(session);
  if (!spaces.empty()) return;
  spaces.assign(static_cast<size_t>(devicesOfReplicaHere(session)), 0);
  if (separates && spaces.empty()) spaces = {0};
  if (separates) std::iota(spaces.begin(), spaces.end(), 0);
}

/// The values of a setting that agree with the program's own behaviour, as JSON.
std::vector<std::string> agreeing(const std::string& name, const ProgramOptions& session) {
  const int64_t replicas = totalReplicas(session);
  const auto switchOf = [](bool is_needed) {
    return is_needed ? std::vector<std::string>{"true"} : std::vector<std::string>{"true", "false"};
  };
  if (name == "accumulationFactor") return {cat(session.gradient_accumulation)};
  if (name == "enableGradientAccumulation") return switchOf(session.gradient_accumulation > 1);
  if (name == "enableReplicatedGraphs") return switchOf(replicas > 1);
  if (name == "enableDistributedReplicatedGraphs") return switchOf(replicaProcesses(session) > 1);
  if (name == "globalReplicationFactor") return {cat(replicas)};
  if (name == "globalReplicaOffset")
    return {
        cat(replicaProcesses(session) > 1 ? session.processes.index / session.processes.stages * session.replicas : 0)};
  if (name == "accumulationAndReplicationReductionType") return {session.mean_reduction ? "1" : "0"};
  throwInternal(__FILE__, __LINE__, "agreeing", cat("no value for the expert setting ", name));
}

/// Throws E0702 for an expert setting (Popart().set, _Popart.set) that asks for other results than the program gives.
/// Requires: names and kinds are valid. Returns: the settings that are only hints and have no effect.
std::vector<std::string> requireAvailable(const options::OptionMap& settings, const ProgramOptions& session) {
  std::vector<std::string> hints;
  for (const auto& [name, value] : settings) {
    const options::ExpertSetting& row = options::expertSettings().at(name);
    const auto initial = options::expertDefaults().find(name);
    const bool is_set = initial == options::expertDefaults().end() || !(initial->second == value);
    if (row.effect == options::ExpertEffect::kHint && is_set) hints.push_back(name);
    if (row.effect != options::ExpertEffect::kOnly && row.effect != options::ExpertEffect::kLike) continue;
    const std::vector<std::string> values =
        row.effect == options::ExpertEffect::kOnly ? row.values : agreeing(name, session);
    if (std::find(values.begin(), values.end(), value.text()) != values.end()) continue;
    const std::string expected = joined(values, {}, " or ");
    throwUser(
        ErrorCode::E0702,
        {.what = cat("option ", name, " = ", value.text(), " is not available: it would change what the model does"),
         .found = value.text(),
         .expected = row.option.empty() ? expected : cat(expected, ", as ", row.option, " says"),
         .remedy = row.option.empty() ? "remove the setting" : cat("remove the setting, and use ", row.option)});
  }
  return hints;
}

void setBuffers(const Options::Values& values, ProgramOptions& session) {
  const options::OptionValue* buffers = values.expert("updatableNamedBuffers");
  if (!buffers) return;
  for (const options::OptionValue& name : *buffers->as<options::OptionList>()) {
    ABELE_REQUIRE(name.as<std::string>(), E0702,
                  {.what = cat("option updatableNamedBuffers is ", buffers->text()), .expected = "names of buffers"});
    session.updatable_buffers.push_back(*name.as<std::string>());
  }
}

}  // namespace

bool simulatorIsChosen() {
  return environmentInteger("POPTORCH_IPU_MODEL", 0) != 0 || environmentInteger("POPTORCH_SMALL_IPU_MODEL", 0) != 0;
}

bool usesModel(const Options::Values& values) {
  const auto chosen = values.get<std::optional<bool>>("use_model");
  return chosen ? *chosen : simulatorIsChosen();
}

schedule::ScheduleKind kindOf(Schedule schedule) {
  switch (schedule) {
#define ABELE_SCHEDULE(...)
#define ABELE_PIPELINE(kind, ...) \
  case Schedule::kind: return schedule::ScheduleKind::kind;
#include "schedule/schedules.def"
    case Schedule::kAuto:
    case Schedule::kDefault:
      throwUser(ErrorCode::E0702, {.what = cat(schedule == Schedule::kAuto ? "Schedule::kAuto" : "Schedule::kDefault",
                                               " is not a single schedule"),
                                   .expected = "the name of one",
                                   .remedy = "use it in PipelinedExecution::schedule"});
  }
  throwUser(ErrorCode::E0702, {.what = cat("there is no schedule ", static_cast<int>(schedule))});
}

CommGroup commGroup(CommGroupType type) {
  switch (type) {
    case CommGroupType::kAll: return CommGroup::kAll;
    case CommGroupType::kConsecutive: return CommGroup::kConsecutive;
    case CommGroupType::kOrthogonal: return CommGroup::kOrthogonal;
    case CommGroupType::kNoGrouping: return CommGroup::kNone;
  }
  throwUser(ErrorCode::E0702, {.what = cat("there is no group type ", static_cast<int>(type))});
}

int64_t localProcesses(int64_t processes) {
  for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"})
    if (!environmentText(name).empty()) return std::min(environmentInteger(name, processes, 1), processes);
  return processes;
}

ProgramOptions programOptions(const Options::Values& values, bool training) {
  options::validateExpert(values.popart);
  requireTarget(values);
  requireEnvironment(values);
  options::note(log::Level::kDebug, cat("options: ", options::toText(values)));
  const auto repeats = values.get<int64_t>("max_repeat_logs");
  log::setMaxRepeats(repeats == options::kNoMost ? -1 : repeats);
  ProgramOptions session;
  session.training = training;
  session.share_weights = true;
  session.device = environmentText("ABELE_DEVICE");
#define ABELE_OPTION(...)
#define ABELE_COMPILED_OF(key, type, name, ...) take(values, key, session.name);
#define ABELE_AT_RUN_OF ABELE_COMPILED_OF
#include "compile/program_options.def"
  requirePositive(session.device_iterations, "deviceIterations");
  requirePositive(session.gradient_accumulation, "gradientAccumulation");
  requirePositive(session.replicas, "replicationFactor");
  session.input_grouping = commGroup(values.get<CommGroupType>("input_cgt"));
  session.processes.index = values.get<int64_t>("distributed_process_id");
  session.processes.count = values.get<int64_t>("num_distributed_processes");
  session.processes.on_host = localProcesses(session.processes.count);
  setStageProcesses(values, session);
  const bool checks = values.get<std::optional<bool>>("check_capture").value_or(true);
  session.checks_capture = checks ? CaptureCheck::kRequires : CaptureCheck::kOff;
  session.mean_reduction =
      values.get<ReductionType>("accumulation_and_replication_reduction_type") == ReductionType::kMean;
  session.output_mode = resolve(values.get<abele::OutputMode>("output_mode"), training);
  session.output_rank = outputRankOf(values.get<std::string>("output_rank"));
  setStrategy(values.strategy, session);
  setLocations(values, session);
  session.recompute |= isOn(values, "autoRecomputation");
  const std::string fusion = values.get<std::string>("fusion_level");
  session.fusion = fusion == "off" ? Fusion::kOff : fusion == "fast" ? Fusion::kFast : Fusion::kExact;
  setSpaces(values, session);
  session.stages.group = static_cast<int>(values.get<std::optional<int64_t>>("tensor_parallel").value_or(1));
  const auto seed = values.get<std::optional<uint64_t>>("random_seed");
  session.has_seed = seed.has_value();
  session.seed = seed.value_or(0);
  requireLossScaling(session);
  setAnchors(values, training, session);
  setProfile(values, session);
  setBuffers(values, session);
  setCache(values, session);
  for (const std::string& name : requireAvailable(values.popart, session))
    options::note(log::Level::kInfo, cat("option ", name, " is a hint: it has no effect on what the devices do"));
  return session;
}

}  // namespace abele::compile

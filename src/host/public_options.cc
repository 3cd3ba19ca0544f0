// abele::Options: checked values that become SessionOptions.
#include "abele/options.h"

#include "abele/version.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "base/whole_file.h"
#include "host/expert_settings.h"
#include "host/option_store.h"
#include "host/public_access.h"

namespace abele {

namespace {

host::OutputMode resolve(OutputMode mode, bool training) {
  switch (mode) {
    case OutputMode::kFinal: return host::OutputMode::kFinal;
    case OutputMode::kEveryN: return host::OutputMode::kEveryN;
    case OutputMode::kAll: return host::OutputMode::kAll;
    case OutputMode::kSum: return host::OutputMode::kSum;
    case OutputMode::kDefault: break;
  }
  return training ? host::OutputMode::kFinal : host::OutputMode::kAll;
}

int64_t positive(const Options::Values& values, const char* key, const char* name) {
  const auto value = values.get<int64_t>(key);
  ABELE_REQUIRE(value >= 1, E0702, {.what = cat(name, " is ", value), .expected = "1 or more"});
  return value;
}

bool isOn(const Options::Values& values, const char* name) {
  const host::OptionValue* found = values.expert(name);
  if (!found) return false;
  return found->as<bool>() ? *found->as<bool>() : found->as<int64_t>() && *found->as<int64_t>() != 0;
}

double shareOf(const Options::Values& values, const char* name, double otherwise) {
  const host::OptionValue* found = values.expert(name);
  return found && found->as<double>() ? *found->as<double>() : otherwise;
}

/// Automatic loss scaling and its settings.
void setLossScaling(const Options::Values& values, host::SessionOptions& session) {
  session.auto_loss_scaling = isOn(values, "automaticLossScalingSettings.enabled");
  session.loss_scale_edge = shareOf(values, "automaticLossScalingSettings.binEdgeLocation", session.loss_scale_edge);
  ABELE_REQUIRE(session.loss_scale_edge > 0 && session.loss_scale_edge < 1, E0702,
                {.what = cat("binEdgeLocation is ", session.loss_scale_edge), .expected = "between 0 and 1"});
  session.loss_scale_threshold =
      shareOf(values, "automaticLossScalingSettings.thresholdUpperCountProportion", session.loss_scale_threshold);
  ABELE_REQUIRE(
      session.loss_scale_threshold >= 0 && session.loss_scale_threshold <= 1, E0702,
      {.what = cat("thresholdUpperCountProportion is ", session.loss_scale_threshold), .expected = "between 0 and 1"});
  if (const host::OptionValue* period = values.expert("automaticLossScalingSettings.updatePeriod")) {
    session.loss_scale_period = *period->as<int64_t>();
    ABELE_REQUIRE(session.loss_scale_period >= 1, E0702,
                  {.what = cat("updatePeriod is ", session.loss_scale_period), .expected = "1 or more"});
  }
}

void setAnchors(const Options::Values& values, bool training, host::SessionOptions& session) {
  for (const auto& [name, entry] : *values.find("anchored_tensors")->as<host::OptionMap>()) {
    const host::OptionList& parts = *entry.as<host::OptionList>();
    const bool as_model = *parts[1].as<bool>();
    const auto mode = static_cast<OutputMode>(parts[2].as<host::EnumMember>()->value);
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

void setStrategy(const ExecutionStrategy& strategy, host::SessionOptions& session) {
  session.strategy = strategy.pipelined ? host::Strategy::kPipelined : host::Strategy::kSharded;
  session.recompute = strategy.recomputes;
  session.costs = strategy.stage_costs;
  session.recompute_to_fit = strategy.recomputes_to_fit;
  session.schedule_rule = strategy.pipeline_schedule == Schedule::kAuto      ? host::ScheduleRule::kFastest
                          : strategy.pipeline_schedule == Schedule::kDefault ? host::ScheduleRule::kDefault
                                                                             : host::ScheduleRule::kGiven;
  if (session.schedule_rule == host::ScheduleRule::kGiven) session.schedule = kindOf(strategy.pipeline_schedule);
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

/// Where the tensors of a use live: phased strategies put everything off chip, activations where their liveness lets
/// them leave; a location that was set wins.
plan::TensorLocation locationOf(const Options::Values& values, const char* key, bool off_chip) {
  plan::TensorLocation location{.off_chip = off_chip};
  const host::OptionValue* found = values.find(key);
  if (!found) return location;
  const auto& settings = *found->object<TensorLocationSettings>();
  location.off_chip = !settings.onChip().value_or(!off_chip);
  location.min_elements = settings.minElementsForOffChip().value_or(location.min_elements);
  return location;
}

/// Are tensors of this use dealt to the replicas, and from how many elements on.
std::pair<bool, int64_t> shardingOf(const Options::Values& values, const char* key) {
  const host::OptionValue* found = values.find(key);
  if (!found) return {false, exe::kMinElementsForSharding};
  const auto& settings = *found->object<TensorLocationSettings>();
  return {settings.useReplicatedTensorSharding().value_or(false),
          settings.minElementsForReplicatedTensorSharding().value_or(exe::kMinElementsForSharding)};
}

void setLocations(const Options::Values& values, host::SessionOptions& session) {
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
  if (const host::OptionValue* limits = values.find("device_memory_limit"); limits && limits->as<host::OptionMap>())
    for (const auto& [device, bytes] : *limits->as<host::OptionMap>())
      session.device_memory.of_device[static_cast<int>(host::deviceOf(device))] = *bytes.as<int64_t>();
  session.off_chip_memory_limit = values.get<std::optional<int64_t>>("off_chip_memory_limit").value_or(-1);
  session.off_chip_folder = values.get<std::optional<std::string>>("off_chip_folder").value_or("");
}

bool usesModel(const Options::Values& values) {
  const auto chosen = values.get<std::optional<bool>>("use_model");
  if (chosen) return *chosen;
  return environmentInteger("POPTORCH_IPU_MODEL", 0) != 0 || environmentInteger("POPTORCH_SMALL_IPU_MODEL", 0) != 0;
}

/// Throws for settings of the target that contradict each other, and for those that would change what a model does.
void requireSupported(const Options::Values& values) {
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

}  // namespace

plan::ScheduleKind kindOf(Schedule schedule) {
  switch (schedule) {
    case Schedule::k1F1B: return plan::ScheduleKind::k1F1B;
    case Schedule::kGPipe: return plan::ScheduleKind::kGPipe;
    case Schedule::kInterleaved: return plan::ScheduleKind::kInterleaved;
    case Schedule::kZeroBubble: return plan::ScheduleKind::kZeroBubble;
    case Schedule::kZeroBubble2: return plan::ScheduleKind::kZeroBubble2;
    case Schedule::kAuto:
    case Schedule::kDefault:
      throwUser(ErrorCode::E0702, {.what = cat(schedule == Schedule::kAuto ? "Schedule::kAuto" : "Schedule::kDefault",
                                               " is no schedule of its own"),
                                   .expected = "the name of one",
                                   .remedy = "use it in PipelinedExecution::schedule"});
  }
  throwUser(ErrorCode::E0702, {.what = cat("there is no schedule ", static_cast<int>(schedule))});
}

const char* version() { return "0.1.0"; }

Options::Options() : values_(std::make_unique<Values>()) {}
Options::Options(const Options& other) : values_(std::make_unique<Values>(*other.values_)) { values_->frozen = false; }
Options& Options::operator=(const Options& other) {
  *values_ = *other.values_;
  values_->frozen = false;
  return *this;
}
Options::~Options() = default;

TrainingOptions Options::Training() const { return TrainingOptions(values_.get()); }
PrecisionOptions Options::Precision() const { return PrecisionOptions(values_.get()); }
JitOptions Options::Jit() const { return JitOptions(values_.get()); }
PopartOptions Options::Popart() const { return PopartOptions(values_.get()); }
DistributedOptions Options::Distributed() const { return DistributedOptions(values_.get()); }
TensorLocationOptions Options::TensorLocations() const { return TensorLocationOptions(values_.get()); }

bool Options::defaultOutputMode() const { return output_mode() == OutputMode::kDefault; }
int64_t Options::combinedBatchSize(int64_t batch_size) const {
  return batch_size * deviceIterations() * gradientAccumulation() * (replicationFactor() / input_group_size());
}
int64_t Options::deviceIterations() const { return device_iterations(); }
int64_t Options::gradientAccumulation() const { return Training().gradient_accumulation(); }
int64_t Options::replicationFactor() const { return replication_factor(); }

Options& Options::deviceMemoryLimit(const std::map<std::string, int64_t>& limit_bytes) {
  values_->call("deviceMemoryLimit", {host::toValue(limit_bytes)});
  return *this;
}
std::map<std::string, int64_t> Options::device_memory_limits() const {
  std::map<std::string, int64_t> limits;
  const host::OptionValue* value = values_->find("device_memory_limit");
  if (const host::OptionMap* map = value ? value->as<host::OptionMap>() : nullptr)
    for (const auto& [device, bytes] : *map) limits.emplace(device, *bytes.as<int64_t>());
  return limits;
}

Options& Options::loadFromFile(const std::string& path) {
  const std::string text = readWholeFile(path, {}, kMostTextBytes);
  host::applyConfigText(*values_, text, path.substr(path.find_last_of('/') + 1));
  return *this;
}
Options& Options::fromJson(const std::string& text) {
  host::applyJson(*values_, text);
  return *this;
}
std::string Options::toJson() const { return host::toJson(*values_); }
std::string Options::str() const { return host::toText(*values_); }
void Options::freeze() const { values_->frozen = true; }
bool Options::isFrozen() const { return values_->frozen; }

std::optional<Setting> PopartOptions::get(const std::string& name) const {
  const host::OptionValue* found = values_->expert(name);
  return found ? std::optional<Setting>(host::toSetting(*found)) : std::nullopt;
}

const Stage& ExecutionStrategy::stage(const std::string& block_id) const {
  std::string known;
  for (const Stage& each : stages)
    for (const std::string& block : each.blocks) {
      if (block == block_id) return each;
      known += cat(known.empty() ? "" : ", ", block);
    }
  throwUser(ErrorCode::E0305, {.what = cat("unknown block \"", block_id, "\""), .expected = known});
}

Phase ExecutionStrategy::phase(int index) const {
  Phase found{std::initializer_list<Stage>()};
  for (size_t i = 0; i < stages.size(); ++i)
    if (!phase_of.empty() && phase_of[i] == index) found.stages.push_back(stages[i]);
  ABELE_REQUIRE(!found.stages.empty(), E0702,
                {.what = cat("there is no phase ", index),
                 .expected = phase_of.empty() ? "a phased strategy" : cat("0 to ", phase_of.back())});
  return found;
}

PipelinedExecution& PipelinedExecution::recompute(const char* how) {
  ABELE_REQUIRE(std::string(how) == "fit", E0702,
                {.what = cat("there is no recomputation \"", how, "\""), .expected = "true, false or \"fit\""});
  recomputes = false;
  recomputes_to_fit = true;
  return *this;
}

PipelinedExecution autoSplit(int devices) {
  ABELE_REQUIRE(devices >= 0, E0702,
                {.what = cat("an AutoSplit for ", devices, " devices"), .expected = "1 or more, or 0 for all cores"});
  PipelinedExecution strategy(AutoStage::kAutoSplit);
  strategy.split_devices = devices;
  return strategy;
}

Phase& Phase::ipus(const std::vector<int>& devices) {
  ABELE_REQUIRE(devices.size() == stages.size(), E0702,
                {.what = cat(devices.size(), " devices for the stages of a phase"),
                 .expected = cat(stages.size(), ", one a stage")});
  for (size_t i = 0; i < stages.size(); ++i) stages[i].ipu(devices[i]);
  return *this;
}

namespace {

// Stages of all phases, in order.
void listPhases(ExecutionStrategy& strategy, const std::initializer_list<Phase>& phases) {
  strategy.pipelined = false;
  int index = 0;
  for (const Phase& phase : phases) {
    for (const Stage& stage : phase.stages) {
      strategy.stages.push_back(stage);
      strategy.phase_of.push_back(index);
    }
    ++index;
  }
}

}  // namespace

SerialPhasedExecution::SerialPhasedExecution(std::initializer_list<Phase> phases) { listPhases(*this, phases); }

ParallelPhasedExecution::ParallelPhasedExecution(std::initializer_list<Phase> phases) {
  listPhases(*this, phases);
  alternating = true;
}

host::CommGroup host::commGroup(CommGroupType type) {
  switch (type) {
    case CommGroupType::kAll: return CommGroup::kAll;
    case CommGroupType::kConsecutive: return CommGroup::kConsecutive;
    case CommGroupType::kOrthogonal: return CommGroup::kOrthogonal;
    case CommGroupType::kNoGrouping: return CommGroup::kNone;
  }
  throwUser(ErrorCode::E0702, {.what = cat("there is no group type ", static_cast<int>(type))});
}

host::SessionOptions OptionsAccess::session(const Options& options, bool training) {
  const Options::Values& values = *options.values_;
  host::validateExpert(values.popart);
  requireSupported(values);
  log::debug("options: ", host::toText(values));
  const auto repeats = values.get<int64_t>("max_repeat_logs");
  log::setMaxRepeats(repeats == host::kNoMost ? -1 : repeats);
  host::SessionOptions session;
  session.training = training;
  session.device_iterations = positive(values, "device_iterations", "deviceIterations");
  session.gradient_accumulation = positive(values, "gradient_accumulation", "gradientAccumulation");
  session.replicas = positive(values, "replication_factor", "replicationFactor");
  session.input_group_size = values.get<int64_t>("input_group_size");
  session.input_grouping = host::commGroup(values.get<CommGroupType>("input_cgt"));
  session.processes.index = values.get<int64_t>("distributed_process_id");
  session.processes.count = values.get<int64_t>("num_distributed_processes");
  session.processes.on_host = std::clamp<int64_t>(environmentInteger("LOCAL_WORLD_SIZE", session.processes.count), 1,
                                                  std::max<int64_t>(1, session.processes.count));
  session.broadcast_buffers = values.get<bool>("broadcast_buffers");
  session.trusts_reads = values.get<bool>("trust_reads");
  session.mean_reduction =
      values.get<ReductionType>("accumulation_and_replication_reduction_type") == ReductionType::kMean;
  session.output_mode = resolve(values.get<OutputMode>("output_mode"), training);
  session.output_period = values.get<int64_t>("output_return_period");
  setStrategy(values.strategy, session);
  setLocations(values, session);
  session.recompute |= isOn(values, "autoRecomputation");
  session.enforce_pipeline_minimum = values.get<bool>("enforce_pipeline_minimum");
  session.share_weights = values.get<bool>("share_weights");
  session.num_devices = values.get<int64_t>("num_devices");
  if (const host::OptionValue* threads = values.expert("abele.threadsPerDevice"))
    session.threads_per_device = static_cast<int>(*threads->as<int64_t>());
  const auto seed = values.get<std::optional<uint64_t>>("random_seed");
  session.has_seed = seed.has_value();
  session.seed = seed.value_or(0);
  session.floating_point_exceptions = isOn(values, "enableFloatingPointChecks");
  session.stochastic_rounding = isOn(values, "enableStochasticRounding");
  session.synthetic_data = isOn(values, "syntheticDataMode");
  setLossScaling(values, session);
  setAnchors(values, training, session);
  if (const host::OptionValue* buffers = values.expert("updatableNamedBuffers"))
    for (const host::OptionValue& name : *buffers->as<host::OptionList>())
      session.updatable_buffers.push_back(*name.as<std::string>());
  const host::OptionValue* caches = values.expert("enableEngineCaching");
  if (const host::OptionValue* path = values.expert("cachePath"); path && (!caches || *caches->as<bool>()))
    session.cache_path = *path->as<std::string>();
  if (const host::OptionValue* path = values.expert("saveInitializersToFile"))
    session.initializers_path = *path->as<std::string>();
  for (const std::string& name : host::requireAvailable(values.popart, session))
    log::info("option ", name, " is a hint: it has no effect on what the devices do");
  return session;
}

}  // namespace abele

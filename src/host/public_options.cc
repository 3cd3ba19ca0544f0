// abele::Options: checked values that become SessionOptions.
#include "abele/options.h"

#include "abele/version.h"
#include "base/error.h"
#include "host/public_access.h"

namespace abele {

struct Options::Values {
  int64_t device_iterations = 1;
  int64_t gradient_accumulation = 1;
  int64_t replicas = 1;
  int64_t input_group_size = 1;
  CommGroupType input_grouping = CommGroupType::kConsecutive;
  bool broadcast_buffers = true;
  ReductionType reduction = ReductionType::kMean;
  OutputMode output_mode = OutputMode::kDefault;
  int64_t output_period = 1;
  ExecutionStrategy strategy = PipelinedExecution();
  bool enforce_pipeline_minimum = false;
  int64_t devices = 0;
  int threads_per_device = 0;
  bool has_seed = false;
  uint64_t seed = 0;
  std::string cache_path;
  bool floating_point_exceptions = false;
  bool stochastic_rounding = false;
};

namespace {

void requireAtLeast(const char* name, int64_t value, int64_t least) {
  ABELE_REQUIRE(value >= least, E0702,
                {.what = cat(name, " is ", value),
                 .found = cat(value),
                 .expected = cat(least, " or more"),
                 .remedy = cat("pass ", least, " or more")});
}

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

void checkStages(const std::vector<Stage>& stages) {
  std::vector<std::string> seen;
  for (const Stage& stage : stages)
    for (const std::string& block : stage.blocks) {
      for (const std::string& other : seen)
        ABELE_REQUIRE(other != block, E0702,
                      {.what = cat("block \"", block, "\" is in two stages"),
                       .expected = "each block in one stage",
                       .remedy = "remove it from one"});
      seen.push_back(block);
    }
}

}  // namespace

plan::ScheduleKind kindOf(Schedule schedule) {
  switch (schedule) {
    case Schedule::k1F1B: return plan::ScheduleKind::k1F1B;
    case Schedule::kGPipe: return plan::ScheduleKind::kGPipe;
    case Schedule::kInterleaved: return plan::ScheduleKind::kInterleaved;
    case Schedule::kZeroBubble: return plan::ScheduleKind::kZeroBubble;
    case Schedule::kZeroBubble2: return plan::ScheduleKind::kZeroBubble2;
  }
  throwUser(ErrorCode::E0702, {.what = cat("there is no schedule ", static_cast<int>(schedule))});
}

const char* version() { return "0.1.0"; }

Options::Options() : values_(std::make_unique<Values>()) {}
Options::Options(const Options& other) : values_(std::make_unique<Values>(*other.values_)) {}
Options& Options::operator=(const Options& other) {
  *values_ = *other.values_;
  return *this;
}
Options::~Options() = default;

Options& Options::deviceIterations(int64_t iterations) {
  requireAtLeast("deviceIterations", iterations, 1);
  values_->device_iterations = iterations;
  return *this;
}

Options& Options::replicationFactor(int64_t replicas) {
  requireAtLeast("replicationFactor", replicas, 1);
  values_->replicas = replicas;
  return *this;
}

Options& Options::inputReplicaGrouping(int64_t group_size, CommGroupType type) {
  ABELE_REQUIRE(
      type != CommGroupType::kAll, E0702,
      {.what = "inputReplicaGrouping does not take CommGroupType::kAll", .remedy = "make one group of all replicas"});
  if (type == CommGroupType::kNoGrouping) group_size = 1;
  ABELE_REQUIRE(group_size >= 1 && values_->replicas % group_size == 0, E0702,
                {.what = cat("the input group size is ", group_size, " for ", values_->replicas, " replicas"),
                 .expected = cat("a divisor of ", values_->replicas),
                 .remedy = "call replicationFactor first"});
  values_->input_group_size = group_size;
  values_->input_grouping = type == CommGroupType::kNoGrouping ? CommGroupType::kConsecutive : type;
  return *this;
}

Options& Options::broadcastBuffers(bool broadcast) {
  values_->broadcast_buffers = broadcast;
  return *this;
}

Options& Options::outputMode(OutputMode mode, int64_t period) {
  requireAtLeast("the output return period", period, 1);
  values_->output_mode = mode;
  values_->output_period = mode == OutputMode::kEveryN ? period : 1;
  return *this;
}

Options& Options::setExecutionStrategy(const ExecutionStrategy& strategy) {
  checkStages(strategy.stages);
  values_->strategy = strategy;
  return *this;
}

Options& Options::randomSeed(uint64_t seed) {
  values_->has_seed = true;
  values_->seed = seed;
  return *this;
}

Options& Options::enableExecutableCaching(const std::string& folder) {
  values_->cache_path = folder;
  return *this;
}

Options& Options::enableFloatingPointExceptions(bool enable) {
  values_->floating_point_exceptions = enable;
  return *this;
}

Options& Options::enableStochasticRounding(bool enable) {
  values_->stochastic_rounding = enable;
  return *this;
}

Options& Options::threadsPerDevice(int threads) {
  requireAtLeast("threadsPerDevice", threads, 0);
  values_->threads_per_device = threads;
  return *this;
}

Options& Options::devices(int64_t count) {
  requireAtLeast("devices", count, 0);
  values_->devices = count;
  return *this;
}

Options& Options::enforcePipelineMinimum(bool enforce) {
  values_->enforce_pipeline_minimum = enforce;
  return *this;
}

TrainingOptions Options::Training() { return TrainingOptions(*this); }

int64_t Options::combinedBatchSize(int64_t batch_size) const {
  return batch_size * values_->device_iterations * values_->gradient_accumulation *
         (values_->replicas / values_->input_group_size);
}
int64_t Options::deviceIterations() const { return values_->device_iterations; }
int64_t Options::gradientAccumulation() const { return values_->gradient_accumulation; }
int64_t Options::replicationFactor() const { return values_->replicas; }

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

TrainingOptions& TrainingOptions::gradientAccumulation(int64_t micro_batches) {
  requireAtLeast("gradientAccumulation", micro_batches, 1);
  options_->values_->gradient_accumulation = micro_batches;
  return *this;
}

TrainingOptions& TrainingOptions::accumulationAndReplicationReductionType(ReductionType type) {
  options_->values_->reduction = type;
  return *this;
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
  host::SessionOptions session;
  session.training = training;
  session.device_iterations = values.device_iterations;
  session.gradient_accumulation = values.gradient_accumulation;
  session.replicas = values.replicas;
  session.input_group_size = values.input_group_size;
  session.input_grouping = host::commGroup(values.input_grouping);
  session.broadcast_buffers = values.broadcast_buffers;
  session.mean_reduction = values.reduction == ReductionType::kMean;
  session.output_mode = resolve(values.output_mode, training);
  session.output_period = values.output_period;
  session.strategy = values.strategy.pipelined ? host::Strategy::kPipelined : host::Strategy::kSharded;
  session.recompute = values.strategy.recomputes;
  session.schedule = kindOf(values.strategy.pipeline_schedule);
  session.stages.auto_stage = values.strategy.auto_stage == AutoStage::kSameAsIpu ? passes::AutoStage::kSameAsIpu
                                                                                  : passes::AutoStage::kAutoIncrement;
  const std::vector<int>& phase_of = values.strategy.phase_of;
  for (size_t i = 0; i < values.strategy.stages.size(); ++i) {
    const Stage& stage = values.strategy.stages[i];
    session.stages.stages.push_back(
        {.blocks = stage.blocks, .ipu = stage.device_index, .phase = phase_of.empty() ? -1 : phase_of.at(i)});
  }
  session.stages.alternating = values.strategy.alternating;
  session.enforce_pipeline_minimum = values.enforce_pipeline_minimum;
  session.num_devices = values.devices;
  session.threads_per_device = values.threads_per_device;
  session.has_seed = values.has_seed;
  session.seed = values.seed;
  session.cache_path = values.cache_path;
  session.floating_point_exceptions = values.floating_point_exceptions;
  session.stochastic_rounding = values.stochastic_rounding;
  return session;
}

}  // namespace abele

// Bodies of abele/options.h; setters.cc has those of the table's setters.
#include "abele/options.h"

#include "abele/placement.h"
#include "abele/version.h"
#include "base/error.h"
#include "base/version.h"
#include "base/whole_file.h"
#include "options/input_shares.h"
#include "options/objects.h"
#include "options/store.h"

namespace abele {

const char* version() { return versionText(); }

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
  const int64_t groups = options::inputSharesOf(*values_).replicas / input_group_size();
  int64_t rows = batch_size;
  for (const int64_t factor : {deviceIterations(), gradientAccumulation(), groups})
    ABELE_REQUIRE(!__builtin_mul_overflow(rows, factor, &rows), E0702,
                  {.what = "a call would have too many rows",
                   .found = cat("batch size ", batch_size, ", deviceIterations ", deviceIterations(),
                                ", gradientAccumulation ", gradientAccumulation(), ", replicas ", groups),
                   .remedy = "use smaller ones, and call the model more often"});
  return rows;
}
int64_t Options::deviceIterations() const { return device_iterations(); }
int64_t Options::gradientAccumulation() const { return Training().gradient_accumulation(); }
int64_t Options::replicationFactor() const { return replication_factor(); }

Options& Options::deviceMemoryLimit(const std::map<std::string, int64_t>& limit_bytes) {
  values_->call("deviceMemoryLimit", {options::toValue(limit_bytes)});
  return *this;
}
std::map<std::string, int64_t> Options::device_memory_limits() const {
  std::map<std::string, int64_t> limits;
  const options::OptionValue* value = values_->find("device_memory_limit");
  if (const options::OptionMap* map = value ? value->as<options::OptionMap>() : nullptr)
    for (const auto& [device, bytes] : *map) limits.emplace(device, *bytes.as<int64_t>());
  return limits;
}

Options& Options::loadFromFile(const std::string& path) {
  const std::string text = readWholeFile(path, {}, kMostTextBytes);
  options::applyConfigText(*values_, text, path.substr(path.find_last_of('/') + 1));
  return *this;
}
Options& Options::fromJson(const std::string& text) {
  options::applyJson(*values_, text);
  return *this;
}
std::string Options::toJson() const { return options::toJson(*values_); }
std::string Options::str() const { return options::toText(*values_); }
void Options::freeze() const { values_->frozen = true; }
bool Options::isFrozen() const { return values_->frozen; }

std::optional<Setting> PopartOptions::get(const std::string& name) const {
  const options::OptionValue* found = values_->expert(name);
  return found ? std::optional<Setting>(options::toSetting(*found)) : std::nullopt;
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

PipelinedExecution wholeMachine() {
  PipelinedExecution strategy(AutoStage::kAutoSplit);
  strategy.split_devices = kMeasuredDevices;
  return strategy;
}

Phase& Phase::ipus(const std::vector<int>& devices) {
  ABELE_REQUIRE(devices.size() == stages.size(), E0702,
                {.what = cat(devices.size(), " devices for the stages of a phase"),
                 .expected = cat(stages.size(), ", one a stage")});
  for (size_t i = 0; i < stages.size(); ++i) stages[i].ipu(devices[i]);
  return *this;
}

SerialPhasedExecution::SerialPhasedExecution(std::initializer_list<Phase> phases) { options::setPhases(*this, phases); }

ParallelPhasedExecution::ParallelPhasedExecution(std::initializer_list<Phase> phases) {
  options::setPhases(*this, phases);
  alternating = true;
}

}  // namespace abele

#include "compile/program_options.h"

#include <algorithm>
#include <thread>

#include <ATen/Parallel.h>

#include "base/error.h"
#include "compile/device_list.h"
#include "compile/measured_placement.h"

namespace abele::compile {
namespace {

void checkReplicas(const ProgramOptions& options) {
  const int64_t replicas = options.replicas, size = options.input_group_size;
  ABELE_REQUIRE(replicas >= 1, E0702,
                {.what = cat("replicationFactor is ", replicas),
                 .expected = "1 or more",
                 .remedy = "set replicationFactor to 1"});
  ABELE_REQUIRE(size >= 1 && replicas % size == 0, E0702,
                {.what = cat("the input group size is ", size, " for ", replicas, " replicas"),
                 .expected = cat("a divisor of ", replicas),
                 .remedy = "set the input group size to 1"});
}

void checkProcesses(const ProgramOptions& options) {
  const ProcessOptions& processes = options.processes;
  ABELE_REQUIRE(processes.count >= 1 && processes.index >= 0 && processes.index < processes.count, E0702,
                {.what = cat("this is process ", processes.index, " of ", processes.count),
                 .expected = "an index from 0 to the number of processes - 1",
                 .remedy = "call Distributed.configureProcessId(index, number)"});
  if (processes.count == 1 || !options.training) return;
  ABELE_REQUIRE(std::ranges::all_of(options.groupings,
                                    [](const ReplicaGrouping& grouping) { return grouping.type == CommGroup::kAll; }),
                E0711,
                {.what = "replicaGrouping is not available in training of several processes",
                 .found = cat(processes.count, " processes"),
                 .remedy = "start one process with all replicas"});
}

}  // namespace

int coresOfReplica(const ProgramOptions& options) {
  if (options.processes.cores > 0) return options.processes.cores;
  const auto cores = static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  return static_cast<int>(std::max<int64_t>(1, cores / (options.replicas * options.processes.on_host)));
}

int threadsPerDevice(const ProgramOptions& options, int64_t devices) {
  if (options.threads_per_device > 0) return options.threads_per_device;
  return std::max(1,
                  at::get_num_threads() / static_cast<int>(std::max<int64_t>(1, devices) * options.processes.on_host));
}

int64_t replicaProcesses(const ProgramOptions& options) { return options.processes.count / options.processes.stages; }

int64_t devicesOfReplicaHere(const ProgramOptions& options) {
  return options.processes.stages > 1 ? options.processes.devices / options.replicas : 0;
}

int64_t totalReplicas(const ProgramOptions& options) { return options.replicas * replicaProcesses(options); }

int64_t inputMicroBatches(const ProgramOptions& options) {
  return options.device_iterations * options.gradient_accumulation * (options.replicas / options.input_group_size);
}

int64_t microBatchesInWork(const ProgramOptions& options) {
  return options.training ? options.gradient_accumulation : options.device_iterations;
}

int64_t stepsPerCall(const ProgramOptions& options) {
  return options.training && options.auto_loss_scaling ? options.device_iterations : 1;
}

namespace {

// Tables have 32 bits for a micro-batch, and products of these numbers must not overflow.
void checkMicroBatches(const ProgramOptions& options) {
  int64_t all = 0;
  const bool fits = !__builtin_mul_overflow(options.device_iterations, options.gradient_accumulation, &all) &&
                    !__builtin_mul_overflow(all, options.replicas, &all) &&
                    !__builtin_mul_overflow(all, replicaProcesses(options), &all) && all <= INT32_MAX;
  ABELE_REQUIRE(fits, E0702,
                {.what = "a call would have too many micro-batches",
                 .found = cat("deviceIterations ", options.device_iterations, ", gradientAccumulation ",
                              options.gradient_accumulation, ", replicationFactor ", options.replicas),
                 .expected = cat("at most ", INT32_MAX, " together"),
                 .remedy = "use smaller ones, and call the model more often"});
}

}  // namespace

namespace {

bool isPhased(const ProgramOptions& options) {
  return std::ranges::any_of(options.stages.stages,
                             [](const passes::StageRules::ExplicitStage& each) { return each.phase >= 0; });
}

bool isOffChip(const plan::Locations& locations) {
  return locations.weights.off_chip || locations.optimizer_state.off_chip || locations.accumulators.off_chip ||
         locations.activations.off_chip;
}

// Kernels of different kinds of devices have different bits.
bool hasSeveralKinds(const ProgramOptions& options) {
  const std::vector<c10::Device> devices = deviceList(options.device);
  return std::ranges::any_of(devices, [&](c10::Device each) { return each.type() != devices[0].type(); });
}

}  // namespace

std::string whyNotInTurn(const ProgramOptions& options) {
  if (options.replicas > 1) return cat(options.replicas, " replicas");
  if (options.processes.count > 1) return cat(options.processes.count, " processes");
  if (!captureDevice(options).is_cpu()) return cat("deviceType ", options.device);
  if (isPhased(options)) return "phased execution";
  if (isOffChip(options.locations)) return "tensors off chip";
  if (!options.stages.spaces.empty()) return "devices that have memories of their own";
  return "";
}

void checkDivision(const ProgramOptions& options) {
  const passes::StageRules& rules = options.stages;
  const bool is_pipeline = options.training && options.strategy == Strategy::kPipelined;
  const std::pair<bool, std::string> refused[] = {
      {hasSeveralKinds(options), cat("deviceType ", options.device)},
      {is_pipeline && options.schedule_rule == ScheduleRule::kFastest, "schedule auto"}};
  for (const auto& [is_asked, what] : refused)
    ABELE_REQUIRE(!is_asked, E0711,
                  {.what = cat("tensorParallel with ", what, " is not available"),
                   .found = rules.group > 1 ? cat("tensorParallel(", rules.group, ")") : "a block with several devices",
                   .remedy = "leave one of the two out"});
}

void checkOptions(const ProgramOptions& options) {
  const auto atLeastOne = [](const char* name, int64_t value) {
    ABELE_REQUIRE(value >= 1, E0702,
                  {.what = cat(name, " is ", value), .expected = "1 or more", .remedy = cat("set ", name, " to 1")});
  };
  atLeastOne("deviceIterations", options.device_iterations);
  atLeastOne("gradientAccumulation", options.gradient_accumulation);
  atLeastOne("the output return period", options.output_period);
  checkReplicas(options);
  checkProcesses(options);
  checkMicroBatches(options);
  if (options.stages.group > 1) checkDivision(options);
  if (options.data_parallel > 1)
    if (const std::string why = measuresDevices(options) ? "a measured number of devices" : whyNotInTurn(options);
        !why.empty())
      throwUser(ErrorCode::E0711, {.what = cat("dataParallel with ", why, " is not available"),
                                   .found = cat("dataParallel(", options.data_parallel, ")"),
                                   .remedy = "leave one of the two out"});
  ABELE_REQUIRE(options.training || options.gradient_accumulation == 1, E0702,
                {.what = cat("gradientAccumulation is ", options.gradient_accumulation, " for inference"),
                 .expected = "1",
                 .remedy = cat("use deviceIterations(", options.device_iterations * options.gradient_accumulation,
                               ") to run several micro-batches a call")});
}

}  // namespace abele::compile

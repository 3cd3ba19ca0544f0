#include "compile/replication.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "compile/tensors.h"
#include "passes/running_statistics.h"

namespace abele::compile {

exe::Replication replicationOf(const ProgramOptions& options) {
  exe::Replication replication;
  replication.replicas = options.replicas;
  replication.processes = replicaProcesses(options);
  replication.devices_per_process = devicesOfReplicaHere(options);
  replication.sharding = options.sharding;
  replication.input_part = groupsOf(options.input_grouping, options.input_group_size, options.replicas);
  for (const ReplicaGrouping& g : options.groupings)
    if (g.type != CommGroup::kAll)
      replication.parameters.push_back({g.parameter, firstOfGroups(groupsOf(g.type, g.shards, options.replicas))});
  return replication;
}

void checkBuffers(const ProgramOptions& options, const exe::Executable& executable, const ir::Graph& graph) {
  if (!options.broadcast_buffers || options.input_group_size == options.replicas) return;
  const std::string off = inLanguage("broadcastBuffers(false)");
  const std::set<std::string> statistics = passes::runningStatistics(graph);
  for (const exe::External& external : executable.externals)
    ABELE_REQUIRE(external.kind != exe::ExternalKind::kBuffer || external.replica_slots.empty() ||
                      statistics.contains(external.name),
                  E0702,
                  {.what = cat("forward writes buffer ", external.name, " while ", options.replicas,
                               " replicas take different inputs"),
                   .found = inLanguage("broadcastBuffers(true)"),
                   .expected = cat(off, ": every replica has its own buffer"),
                   .remedy = cat("set ", inLanguage("Options::broadcastBuffers(false)"),
                                 "; the host then gets the buffers of replica 0")});
}

void checkClipping(const ProgramOptions& options, const OptimizerSpec& optimizer) {
  const bool clips = !std::isinf(optimizer.rules.max_grad_norm);
  const bool is_on_host = options.training && optimizer.rules.kind == passes::OptimizerRules::Kind::kNone;
  if (!clips && !options.auto_loss_scaling && !is_on_host) return;
  const char* what = clips ? "gradient clipping" : is_on_host ? "an update on the host" : "automatic loss scaling";
  for (const ReplicaGrouping& grouping : options.groupings)
    ABELE_REQUIRE(grouping.type == CommGroup::kAll, E0706,
                  {.what = cat(what, " together with replicaGrouping of ", grouping.parameter),
                   .found = clips ? cat("max_grad_norm ", optimizer.rules.max_grad_norm) : std::string(),
                   .expected = cat("no ", what, " if replicas have separate parameters"),
                   .remedy = clips        ? "leave max_grad_norm out"
                             : is_on_host ? "take an optimizer that the devices have"
                                          : "set loss_scaling of the optimizer instead"});
}

namespace {

// Number of devices of a replica. If a replica spans several processes, its devices are numbered by process first.
int64_t devicesOfModel(const ProgramOptions& options, const exe::Executable& executable) {
  const int64_t here = devicesOfReplicaHere(options);
  int64_t devices = 0;
  for (const exe::WorkerProgram& worker : executable.workers) {
    if (worker.replica > 0 || worker.isLink()) continue;
    const int64_t process = here > 0 ? worker.device / (here * options.replicas) : 0;
    devices = std::max(devices, worker.device - process * here * (options.replicas - 1) + 1);
  }
  return devices;
}

int64_t slicesIn(const ReplicaGrouping& grouping, int64_t replicas) {
  if (grouping.one_per_replica || grouping.type == CommGroup::kNone) return replicas;
  return replicas / grouping.shards;
}

void checkGrouping(const ReplicaGrouping& grouping, const at::Tensor& whole, int64_t replicas) {
  ABELE_REQUIRE(fits(grouping, replicas), E0702,
                {.what = cat("replicaGrouping of ", grouping.parameter, " has ", grouping.shards,
                             " replicas in a group of ", replicas, " replicas"),
                 .expected = cat("a divisor of ", replicas)});
  ABELE_REQUIRE(whole.dim() > 0, E0702,
                {.what = cat("replicaGrouping of the scalar parameter ", grouping.parameter),
                 .expected = "a parameter whose first dimension counts the groups",
                 .remedy = "give the parameter a first dimension"});
  const int64_t slices = slicesIn(grouping, replicas);
  ABELE_REQUIRE(whole.size(0) == slices, E0702,
                {.what = cat("replicaGrouping of ", grouping.parameter, " needs ", slices, " values"),
                 .found = typeOf(whole).str(),
                 .expected = cat("a first dimension of ", slices, grouping.one_per_replica ? ", one per replica" : ""),
                 .remedy = "stack the values along a new first dimension"});
}

}  // namespace

void checkStageProcesses(const ProgramOptions& options, const exe::Executable& executable) {
  const ProcessOptions& processes = options.processes;
  if (processes.devices == 0) return;
  // Number of devices of the replicas of a process, or of the processes that hold them together.
  int64_t devices = 0;
  for (const exe::WorkerProgram& worker : executable.workers) devices = std::max<int64_t>(devices, worker.device + 1);
  const int64_t needed = (devices + processes.devices - 1) / processes.devices;
  const int64_t groups = replicaProcesses(options);
  ABELE_REQUIRE(needed == processes.stages, E0402,
                {.what = cat("a model of ", devicesOfModel(options, executable), " devices with ", processes.devices,
                             " in a process is for ", needed * groups, " processes"),
                 .found = cat(processes.count, " processes"),
                 .remedy = cat("start ", needed * groups, " processes, or set devicesPerProcess(",
                               (devices + processes.stages - 1) / processes.stages, ")")});
}

void checkReplicaDevices(const ProgramOptions& options, const plan::Plan& plan) {
  int64_t devices = 0;
  for (int device : plan.device_of) devices = std::max<int64_t>(devices, device + 1);
  const int64_t needed = devices * options.replicas;
  ABELE_REQUIRE(options.num_devices == 0 || needed <= options.num_devices, E0402,
                {.what = cat(options.replicas, " replicas of ", devices, " devices each need ", needed, " devices"),
                 .found = cat(options.num_devices, " devices"),
                 .expected = cat("at least ", needed),
                 .remedy = cat("use at most ", options.num_devices / devices, " replicas")});
}

AtEnd oneValueEach(const std::vector<capture::ModelTensor>& model, const std::vector<ReplicaGrouping>& groupings,
                   int64_t replicas) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<at::Tensor, at::Tensor>> wholes;  // the model's tensor and the tensor of all its values
  for (const ReplicaGrouping& grouping : groupings) {
    if (grouping.type == CommGroup::kAll) continue;
    const auto found = std::ranges::find_if(
        model, [&](const capture::ModelTensor& m) { return m.is_parameter && m.name == grouping.parameter; });
    ABELE_REQUIRE(
        found != model.end(), E0702,
        {.what = cat("replicaGrouping names ", grouping.parameter, ", which is not a parameter of the model")});
    checkGrouping(grouping, *found->tensor, replicas);
    wholes.emplace_back(*found->tensor, found->tensor->variable_data());
  }
  for (auto& [tensor, whole] : wholes) tensor.set_data(whole.select(0, 0).clone());
  return AtEnd([wholes] {
    const at::NoGradGuard again;
    for (const auto& [tensor, whole] : wholes) tensor.set_data(whole);
  });
}

}  // namespace abele::compile

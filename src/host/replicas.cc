#include <algorithm>
#include <cmath>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

#include "base/error.h"
#include "host/session_impl.h"
#include "passes/running_statistics.h"

namespace abele::host {

int64_t inputMicroBatches(const SessionOptions& options) {
  return options.device_iterations * options.gradient_accumulation * (options.replicas / options.input_group_size);
}

exe::Replication replicationOf(const SessionOptions& options) {
  exe::Replication replication;
  replication.replicas = options.replicas;
  replication.processes = options.processes.count;
  replication.sharding = options.sharding;
  replication.input_part = groupsOf(options.input_grouping, options.input_group_size, options.replicas);
  for (const ReplicaGrouping& g : options.groupings)
    if (g.type != CommGroup::kAll)
      replication.parameters.push_back({g.parameter, firstOfGroups(groupsOf(g.type, g.shards, options.replicas))});
  return replication;
}

void checkReplicas(const SessionOptions& options) {
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

void checkBuffers(const SessionOptions& options, const exe::Executable& executable, const ir::Graph& graph) {
  if (!options.broadcast_buffers || options.input_group_size == options.replicas) return;
  const char* off = inLanguage("broadcastBuffers(False)", "broadcastBuffers(false)");
  const std::set<std::string> statistics = passes::runningStatistics(graph);
  for (const exe::External& external : executable.externals)
    ABELE_REQUIRE(external.kind != exe::ExternalKind::kBuffer || external.replica_slots.empty() ||
                      statistics.contains(external.name),
                  E0702,
                  {.what = cat("forward writes buffer ", external.name, " while ", options.replicas,
                               " replicas take different inputs"),
                   .found = inLanguage("broadcastBuffers(True)", "broadcastBuffers(true)"),
                   .expected = cat(off, ": every replica has a buffer of its own"),
                   .remedy = cat("set ", inLanguage("opts.", "Options::"), off,
                                 "; the host then gets the buffers of replica 0")});
}

void checkClipping(const SessionOptions& options, const OptimizerSpec& optimizer) {
  const bool clips = !std::isinf(optimizer.rules.max_grad_norm);
  if (!clips && !options.auto_loss_scaling) return;
  const char* what = clips ? "gradient clipping" : "automatic loss scaling";
  for (const ReplicaGrouping& grouping : options.groupings)
    ABELE_REQUIRE(grouping.type == CommGroup::kAll, E0706,
                  {.what = cat(what, " together with replicaGrouping of ", grouping.parameter),
                   .found = clips ? cat("max_grad_norm ", optimizer.rules.max_grad_norm) : std::string(),
                   .expected = cat("no ", what, " where replicas have parameters of their own"),
                   .remedy = clips ? "leave max_grad_norm out" : "set loss_scaling of the optimizer instead"});
}

void checkReplicaDevices(const SessionOptions& options, const plan::Plan& plan) {
  int64_t devices = 0;
  for (int device : plan.device_of) devices = std::max<int64_t>(devices, device + 1);
  const int64_t needed = devices * options.replicas;
  ABELE_REQUIRE(options.num_devices == 0 || needed <= options.num_devices, E0402,
                {.what = cat(options.replicas, " replicas of ", devices, " devices each need ", needed, " devices"),
                 .found = cat(options.num_devices, " devices"),
                 .expected = cat("at least ", needed),
                 .remedy = cat("use at most ", options.num_devices / devices, " replicas")});
}

// --- parameters of groups --------------------------------------------------------------------------------------------
namespace {

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

OneValueEach::OneValueEach(const std::vector<capture::ModelTensor>& model,
                           const std::vector<ReplicaGrouping>& groupings, int64_t replicas) {
  at::NoGradGuard no_grad;
  for (const ReplicaGrouping& grouping : groupings) {
    if (grouping.type == CommGroup::kAll) continue;
    const auto found = std::find_if(model.begin(), model.end(), [&](const capture::ModelTensor& m) {
      return m.is_parameter && m.name == grouping.parameter;
    });
    ABELE_REQUIRE(found != model.end(), E0702,
                  {.what = cat("replicaGrouping names ", grouping.parameter, ", which is no parameter of the model")});
    checkGrouping(grouping, *found->tensor, replicas);
  }
  for (const ReplicaGrouping& grouping : groupings) {
    if (grouping.type == CommGroup::kAll) continue;
    const auto found = std::find_if(model.begin(), model.end(),
                                    [&](const capture::ModelTensor& m) { return m.name == grouping.parameter; });
    at::Tensor& tensor = *found->tensor;
    wholes_.emplace_back(tensor, tensor.variable_data());
    tensor.set_data(tensor.variable_data().select(0, 0).clone());
  }
}

OneValueEach::~OneValueEach() {
  at::NoGradGuard no_grad;
  for (auto& [tensor, whole] : wholes_) tensor.set_data(whole);
}

std::vector<Slices> slicesOf(const exe::Executable& executable, const std::vector<ReplicaGrouping>& groupings) {
  std::vector<Slices> slices(executable.externals.size());
  for (size_t i = 0; i < slices.size(); ++i) {
    const exe::External& external = executable.externals[i];
    const exe::External& parameter = external.owner >= 0 ? executable.externals[external.owner] : external;
    if (external.kind != exe::ExternalKind::kParameter && external.kind != exe::ExternalKind::kState) continue;
    for (const ReplicaGrouping& grouping : groupings) {
      if (grouping.parameter != parameter.name || grouping.type == CommGroup::kAll) continue;
      const std::vector<int32_t> first_of =
          firstOfGroups(groupsOf(grouping.type, grouping.shards, executable.replicas));
      for (int32_t r = 0; r < executable.replicas; ++r)
        if (grouping.one_per_replica || first_of[r] == r) {
          slices[i].replica.push_back(r);
          slices[i].first.push_back(first_of[r] == r);
        }
    }
  }
  return slices;
}

void uploadSlices(Compiled& compiled, size_t external, const at::Tensor& host) {
  requireMemory(host, compiled.executable.externals[external].name);
  const Slices& slices = compiled.slices[external];
  const auto index = static_cast<int32_t>(external);
  if (slices.replica.empty()) return compiled.backend->upload(index, memoryOf(compiled, external, host));
  for (size_t s = 0; s < slices.replica.size(); ++s)
    if (slices.first[s])
      compiled.backend->upload(index, memoryOf(compiled, external, host.select(0, static_cast<int64_t>(s))),
                               slices.replica[s]);
}

void downloadSlices(const Compiled& compiled, size_t external, const at::Tensor& host) {
  requireMemory(host, compiled.executable.externals[external].name);
  const Slices& slices = compiled.slices[external];
  const auto index = static_cast<int32_t>(external);
  if (slices.replica.empty()) {
    at::Tensor memory = memoryOf(compiled, external, host);
    return compiled.backend->download(index, memory);
  }
  for (size_t s = 0; s < slices.replica.size(); ++s) {
    at::Tensor memory = memoryOf(compiled, external, host.select(0, static_cast<int64_t>(s)));
    compiled.backend->download(index, memory, slices.replica[s]);
  }
}

at::Tensor copyOf(const Compiled& compiled, size_t external) {
  const Slices& slices = compiled.slices[external];
  const auto index = static_cast<int32_t>(external);
  if (slices.replica.empty()) return compiled.backend->external(index).clone();
  std::vector<at::Tensor> values;
  for (int32_t replica : slices.replica) values.push_back(compiled.backend->external(index, replica));
  return at::stack(values);
}

}  // namespace abele::host

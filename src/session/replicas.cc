
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

#include "compile/tensors.h"
#include "session/impl.h"

namespace abele::session {

std::vector<Slices> slicesOf(const exe::Executable& executable,
                             const std::vector<compile::ReplicaGrouping>& groupings) {
  std::vector<Slices> slices(executable.externals.size());
  for (size_t i = 0; i < slices.size(); ++i) {
    const exe::External& external = executable.externals[i];
    const exe::External& parameter = external.owner >= 0 ? executable.externals[external.owner] : external;
    if (external.kind != exe::ExternalKind::kParameter && external.kind != exe::ExternalKind::kState) continue;
    for (const compile::ReplicaGrouping& grouping : groupings) {
      if (grouping.parameter != parameter.name || grouping.type == compile::CommGroup::kAll) continue;
      const std::vector<int32_t> first_of =
          compile::firstOfGroups(compile::groupsOf(grouping.type, grouping.shards, executable.replicas));
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
  compile::requireMemory(host, compiled.executable.externals[external].name);
  const Slices& slices = compiled.slices[external];
  const auto index = static_cast<int32_t>(external);
  if (slices.replica.empty()) return compiled.backend->upload(index, memoryOf(compiled, external, host));
  for (size_t s = 0; s < slices.replica.size(); ++s)
    if (slices.first[s])
      compiled.backend->upload(index, memoryOf(compiled, external, host.select(0, static_cast<int64_t>(s))),
                               slices.replica[s]);
}

void downloadSlices(const Compiled& compiled, size_t external, const at::Tensor& host) {
  compile::requireMemory(host, compiled.executable.externals[external].name);
  const Slices& slices = compiled.slices[external];
  const auto index = static_cast<int32_t>(external);
  if (slices.replica.empty()) {
    const Type& type = compiled.executable.slots[compiled.executable.externals[external].slot].type;
    const bool has_gaps = host.sizes() != at::IntArrayRef(type.sizes);
    if (has_gaps && compiled.model_of[external] != nullptr) requireFits(compiled, external, host);
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
  if (slices.replica.empty()) return compiled.backend->value(index);
  std::vector<at::Tensor> values;
  for (int32_t replica : slices.replica) values.push_back(compiled.backend->value(index, replica));
  return at::stack(values);
}

}  // namespace abele::session

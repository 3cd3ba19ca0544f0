#include "runtime/device/accelerator/staging.h"

#include <map>

#include <ATen/ops/empty_strided.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "runtime/memory/tensors.h"

namespace abele::runtime {
namespace {

at::Tensor like(const Type& type, c10::Device device) {
  return at::empty_strided(type.sizes, type.strides, at::TensorOptions(scalarType(type.dtype)).device(device));
}
at::Tensor pinnedLike(const Type& type) {
  return at::empty_strided(type.sizes, type.strides,
                           at::TensorOptions(scalarType(type.dtype)).device(at::kCPU).pinned_memory(true));
}

/// All elements of the memory that a tensor of this type lies in: those of an expanded one share some.
at::Tensor flat(const at::Tensor& tensor, const Type& type) {
  return tensor.as_strided({type.extent()}, {1}, tensor.storage_offset());
}

void copyPart(const at::Tensor& to, const at::Tensor& from, const Type& type, bool non_blocking) {
  if (isLaidOutAs(from, type) && from.numel() > 0)
    flat(to, type).copy_(flat(from, type), non_blocking);
  else
    to.copy_(from, non_blocking);
}

}  // namespace

void Staging::waitForCaller(const at::Tensor& tensor) const {
  if (tensor.device().type() != copies_.device_type()) return;
  c10::Event event(copies_.device_type());
  event.record(c10::impl::VirtualGuardImpl(copies_.device_type()).getStream(tensor.device()));
  event.block(copies_);
}

void Staging::bindInputs(const std::vector<at::Tensor>& inputs) {
  bound_.clear();
  for (const at::Tensor& input : inputs)
    if (input.defined()) waitForCaller(input);
  const c10::InferenceMode no_autograd;
  const c10::StreamGuard on_copies(copies_);
  for (int64_t i = 0; i < executable_.numInputs(); ++i)
    if (executable_.input_slots[i] >= 0) bindInput(i, inputs[i]);
}

void Staging::bindInput(int64_t index, const at::Tensor& input) {
  const Type& type = executable_.slots[executable_.input_slots[index]].type;
  const int64_t num_parts = executable_.inputParts(), parts = executable_.micro_batches * num_parts;
  const bool comes_from_host = input.is_cpu();
  if (!comes_from_host) bound_.push_back(input);
  std::vector<Part>& staged = inputs_[index];
  staged.resize(parts);
  for (int64_t k = 0; k < parts; ++k) {
    const at::Tensor rows = parts > 1 ? input.narrow(0, k * type.sizes[0], type.sizes[0]) : input;
    Part& part = staged[k];
    if (!part.on_device.defined()) part.on_device = like(type, copies_.device());
    if (comes_from_host && !part.pinned.defined()) part.pinned = pinnedLike(type);
    if (comes_from_host) copyPart(part.pinned, rows, type, /*non_blocking=*/false);
    copyPart(part.on_device, comes_from_host ? part.pinned : rows, type, /*non_blocking=*/true);
    for (int32_t r = 0; r < executable_.replicas; ++r)
      if (executable_.inputPart(r) == k % num_parts)
        slots_.bindInput(r * executable_.numInputs() + index, k / num_parts, part.on_device.const_data_ptr());
  }
}

void Staging::bindOutputs(const std::vector<std::vector<at::Tensor>>& outputs) {
  const c10::InferenceMode no_autograd;
  const c10::StreamGuard on_copies(copies_);
  outputs_.clear();
  for (std::size_t target = 0; target < outputs.size(); ++target) {
    const int32_t slot = executable_.output_slots[target];
    if (slot < 0) continue;
    std::map<const c10::TensorImpl*, at::Tensor> made;  // micro-batches that share a tensor add up in it
    for (int64_t k = 0; k < executable_.micro_batches; ++k) {
      const at::Tensor bound = k < static_cast<int64_t>(outputs[target].size()) ? outputs[target][k] : at::Tensor();
      if (!bound.defined()) {
        slots_.bindOutput(slot, k, at::Tensor());
        continue;
      }
      at::Tensor& ours = made[bound.unsafeGetTensorImpl()];
      if (!ours.defined()) {
        ours = like(executable_.slots[slot].type, copies_.device());
        outputs_.emplace_back(bound, ours);
      }
      slots_.bindOutput(slot, k, ours);
    }
  }
}

void Staging::fetchOutputs() {
  const c10::InferenceMode no_autograd;
  const c10::StreamGuard on_copies(copies_);
  std::vector<std::pair<at::Tensor, at::Tensor>> arrived;
  for (const auto& [bound, ours] : outputs_) {
    waitForCaller(bound);
    if (!bound.is_cpu()) {
      bound.copy_(ours, /*non_blocking=*/true);
      continue;
    }
    const at::Tensor pinned =
        at::empty_strided(ours.sizes(), ours.strides(), ours.options().device(at::kCPU).pinned_memory(true));
    pinned.copy_(ours, /*non_blocking=*/true);
    arrived.emplace_back(bound, pinned);
  }
  copies_.synchronize();
  for (const auto& [bound, pinned] : arrived) bound.copy_(pinned);
}

}  // namespace abele::runtime

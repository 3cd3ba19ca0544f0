#include "device/accelerator/staging.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <utility>

#include <ATen/ops/empty_strided.h>

#include "exe/instruction_slots.h"
#include "memory/tensors.h"

namespace abele::device {
namespace {

std::atomic<int64_t> pinned_count = 0, pinned_bytes = 0;

at::Tensor like(const Type& type, c10::Device device) {
  return at::empty_strided(type.sizes, type.strides, at::TensorOptions(memory::scalarType(type.dtype)).device(device));
}
at::Tensor pinnedLike(const Type& type) {
  ++pinned_count;
  pinned_bytes += type.extentBytes();
  return at::empty_strided(type.sizes, type.strides,
                           at::TensorOptions(memory::scalarType(type.dtype)).device(at::kCPU).pinned_memory(true));
}

/// All elements of the memory that a tensor of this type covers; elements of an expanded tensor share memory.
at::Tensor flat(const at::Tensor& tensor, const Type& type) {
  return tensor.as_strided({type.extent()}, {1}, tensor.storage_offset());
}

// Copies between tensors of the host on this thread only. Torch would wake other threads, which then spin for longer
// than the copy takes.
void copyOnHost(const at::Tensor& to, const at::Tensor& from, const Type& type) {
  if (memory::isLaidOutAs(from, type) && from.scalar_type() == to.scalar_type())
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), static_cast<std::size_t>(type.extentBytes()));
  else
    to.copy_(from);
}

void copyPart(const at::Tensor& to, const at::Tensor& from, const Type& type, bool non_blocking) {
  if (memory::isLaidOutAs(from, type) && from.numel() > 0)
    flat(to, type).copy_(flat(from, type), non_blocking);
  else
    to.copy_(from, non_blocking);
}

}  // namespace

at::Tensor pinnedBytes(int64_t bytes) { return pinnedLike(contiguousType(DType::kUInt8, {bytes})); }

Staging::Staging(const exe::Executable& executable, int64_t stage_process, const Places& places)
    : executable_(executable),
      places_(places),
      reads_(places.size(), std::vector<char>(executable.input_slots.size(), false)),
      read_by_segment_(executable.segments.size()),
      space_of_output_(executable.output_slots.size(), -1),
      inputs_(executable.input_slots.size()),
      outputs_(executable.output_slots.size()) {
  findUses(stage_process);
}

Allocations Staging::pinnedAllocations() { return {pinned_count, pinned_bytes}; }

// An argument has a group of its own, so every instruction that names a slot of the group reads the argument.
void Staging::findUses(int64_t stage_process) {
  std::vector<std::vector<std::size_t>> inputs(executable_.groups.size()), outputs(executable_.groups.size());
  for (std::size_t i = 0; i < executable_.input_slots.size(); ++i)
    if (const int32_t slot = executable_.input_slots[i]; slot >= 0) inputs[executable_.slots[slot].group].push_back(i);
  for (std::size_t i = 0; i < executable_.output_slots.size(); ++i)
    if (const int32_t slot = executable_.output_slots[i]; slot >= 0)
      outputs[executable_.slots[slot].group].push_back(i);
  for (const exe::WorkerProgram& worker : executable_.workers) {
    if (worker.process != stage_process) continue;
    std::vector<char> seen(executable_.segments.size(), false);
    for (const exe::Action& action : worker.actions) {
      if (std::exchange(seen[action.segment], true)) continue;
      for (const exe::Instruction& instruction : executable_.segments[action.segment].instructions)
        exe::forEachOperand(instruction, [&](int32_t slot) {
          const auto group = static_cast<std::size_t>(executable_.slots[slot].group);
          for (const std::size_t i : inputs[group]) {
            reads_[worker.space][i] = true;
            std::vector<int64_t>& read = read_by_segment_[action.segment];
            const int64_t index = static_cast<int64_t>(i) % executable_.numInputs();
            if (std::ranges::find(read, index) == read.end()) read.push_back(index);
          }
          for (const std::size_t i : outputs[group]) space_of_output_[i] = worker.space;
        });
    }
  }
}

// Whether a replica that takes this part of an input reads it in this space.
bool Staging::isRead(int32_t space, int64_t index, int64_t part) const {
  for (int32_t r = 0; r < executable_.replicas; ++r)
    if (executable_.inputPart(r) == part && reads_[space][r * executable_.numInputs() + index]) return true;
  return false;
}

Staging::Part Staging::newPart() const {
  Part part;
  for (const Place& place : places_) {
    part.arrivals.emplace_back();
    if (!place.isHost()) part.arrivals.back().event.emplace(place.device().type());
  }
  return part;
}

void Staging::bindInputs(const std::vector<at::Tensor>& inputs) {
  for (const at::Tensor& input : inputs)
    if (input.defined())
      for (const Place& place : places_) place.waitForCaller(input);
  for (int64_t i = 0; i < executable_.numInputs(); ++i)
    if (executable_.input_slots[i] >= 0) bindInput(i, inputs[i]);
}

void Staging::bindInput(int64_t index, const at::Tensor& input) {
  const Type& type = typeOfInput(index);
  const int64_t num_parts = executable_.inputParts(), parts = executable_.micro_batches * num_parts;
  const c10::InferenceMode no_autograd;
  std::vector<Part>& staged = inputs_[index];
  while (static_cast<int64_t>(staged.size()) < parts) staged.push_back(newPart());
  for (int64_t k = 0; k < parts; ++k) {
    Part& part = staged[k];
    part.rows = parts > 1 ? input.narrow(0, k * type.sizes[0], type.sizes[0]) : input;
    part.is_pinned = false;
    for (int32_t space = 0; space < static_cast<int32_t>(places_.size()); ++space) {
      if (!isRead(space, index, k % num_parts)) continue;
      const Place& place = places_.at(space);
      Arrival& arrival = part.arrivals[space];
      arrival.is_brought = false;
      if (!arrival.tensor.defined()) arrival.tensor = place.work([&] { return like(type, place.device()); });
      // The host space has no stream that could wait for the caller, so the copy is made now, on the stream of the
      // caller.
      if (place.isHost() && !input.is_cpu()) bringPart(part, space, type);
      for (int32_t r = 0; r < executable_.replicas; ++r)
        if (executable_.inputPart(r) == k % num_parts)
          places_.at(space).slots().bindInput(r * executable_.numInputs() + index, k / num_parts,
                                              arrival.tensor.const_data_ptr());
    }
  }
}

void Staging::bring(int32_t worker, const exe::Action& action, const std::optional<c10::Stream>& stream) {
  const std::vector<int64_t>& read = read_by_segment_[action.segment];
  if (read.empty()) return;
  const exe::WorkerProgram& program = executable_.workers[worker];
  const int64_t num_parts = executable_.inputParts(), part_of_replica = executable_.inputPart(program.replica);
  const c10::InferenceMode no_autograd;
  const std::lock_guard lock(mutex_);
  for (const int64_t index : read) {
    Part& part = inputs_[index].at(action.micro_batch * num_parts + part_of_replica);
    bringPart(part, program.space, typeOfInput(index));
    if (stream) part.arrivals[program.space].event->block(*stream);
  }
}

void Staging::bringPart(Part& part, int32_t space, const Type& type) const {
  const Place& place = places_.at(space);
  Arrival& arrival = part.arrivals[space];
  if (std::exchange(arrival.is_brought, true)) return;
  const bool is_staged = part.rows.is_cpu() && !place.isHost();
  if (is_staged && !part.pinned.defined()) part.pinned = pinnedLike(type);
  if (is_staged && !std::exchange(part.is_pinned, true)) copyOnHost(part.pinned, part.rows, type);
  place.work(
      [&] { copyPart(arrival.tensor, is_staged ? part.pinned : part.rows, type, /*non_blocking=*/!place.isHost()); });
  if (arrival.event) arrival.event->record(*place.copies());
}

void Staging::releaseInputs() {
  for (std::vector<Part>& parts : inputs_)
    for (Part& part : parts) part.rows = at::Tensor();
}

void Staging::bindOutputs(const std::vector<std::vector<at::Tensor>>& outputs) {
  for (std::vector<Result>& results : outputs_)
    for (Result& result : results) result.bound = at::Tensor();
  for (std::size_t target = 0; target < outputs.size(); ++target)
    if (space_of_output_[target] >= 0) bindOutput(target, outputs[target]);
}

void Staging::bindOutput(std::size_t target, const std::vector<at::Tensor>& tensors) {
  const int32_t slot = executable_.output_slots[target];
  const Place& place = places_.at(space_of_output_[target]);
  std::vector<Result>& results = outputs_[target];
  std::map<const c10::TensorImpl*, std::size_t> known;  // micro-batches that share a tensor are added up in it
  for (int64_t k = 0; k < executable_.micro_batches; ++k) {
    const at::Tensor bound = k < static_cast<int64_t>(tensors.size()) ? tensors[k] : at::Tensor();
    if (!bound.defined()) {
      place.bindOutput(slot, k, at::Tensor());
      continue;
    }
    const auto [at, is_new] = known.try_emplace(bound.unsafeGetTensorImpl(), known.size());
    if (is_new && at->second == results.size()) {
      const Type& type = executable_.slots[slot].type;
      results.push_back({at::Tensor(), place.work([&] { return like(type, place.device()); }), at::Tensor()});
    }
    Result& result = results[at->second];
    result.bound = bound;
    place.bindOutput(slot, k, result.ours);
  }
}

void Staging::fetchOutputs() {
  for (std::size_t target = 0; target < outputs_.size(); ++target) {
    if (space_of_output_[target] < 0) continue;
    const Place& place = places_.at(space_of_output_[target]);
    for (Result& result : outputs_[target]) {
      if (!result.bound.defined()) continue;
      const bool is_direct = place.isHost() || !result.bound.is_cpu();
      if (!is_direct && !result.pinned.defined())
        result.pinned = pinnedLike(executable_.slots[executable_.output_slots[target]].type);
      place.waitForCaller(result.bound);
      place.work(
          [&] { (is_direct ? result.bound : result.pinned).copy_(result.ours, /*non_blocking=*/!place.isHost()); });
    }
  }
  for (const Place& place : places_) place.wait();
  const c10::InferenceMode no_autograd;
  for (std::size_t target = 0; target < outputs_.size(); ++target)
    for (const Result& result : outputs_[target])
      if (result.bound.defined() && result.bound.is_cpu() && !places_.at(space_of_output_[target]).isHost())
        result.bound.copy_(result.pinned);
}

}  // namespace abele::device

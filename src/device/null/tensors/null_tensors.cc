// The null device with the interface of the contract: tensors go in and out of its bytes. Updates and operators write
// contents that represent values; uploads, copies and emits keep values as they are.
#include <algorithm>
#include <cstring>
#include <unordered_set>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "device/checks.h"
#include "device/null/null_backend.h"
#include "kernels/optimizers.h"
#include "memory/tensors.h"
#include "runtime/written_memory.h"

namespace abele::device {
namespace {

Bytes bytesOf(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().contiguous();
  Bytes bytes(dense.nbytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), dense.const_data_ptr(), bytes.size());
  return bytes;
}

at::Tensor tensorOf(const Bytes& contents, const Type& type) {
  at::Tensor tensor = at::empty(type.sizes, memory::scalarType(type.dtype));
  if (!contents.empty()) std::memcpy(tensor.mutable_data_ptr(), contents.data(), contents.size());
  return tensor;
}

class NullTensors final : public DeviceBackend {
 public:
  NullTensors(const exe::Executable& executable, const DeviceOptions& options)
      : executable_(executable),
        written_(executable),
        null_(executable),
        outputs_(executable.output_slots.size()),
        rounding_{.seed = options.rounding_seed},
        start_(at::detail::createCPUGenerator()) {
    checkOptions(options);
    null_.enableContents();
    fillInitial();
    if (Watch* watch = options.watch)
      null_.setWriteHook([this, watch](const runtime::ActionContext& action, int32_t instruction, int32_t slot,
                                       const Bytes& contents) {
        if (isWanted(slot, action.micro_batch))
          watch->computed(action, instruction, slot, tensorOf(contents, executable_.slots[slot].type));
      });
  }

  std::unique_ptr<runtime::Device> makeDevice(int32_t worker) override { return null_.makeDevice(worker); }
  void begin(int64_t step) override { null_.begin(step); }
  void finish(bool completed) override {
    null_.finish(completed);
    if (!completed) return;
    fillOutputs();
    advanceGenerator();
    ++rounding_.step;
  }

  void upload(int32_t external, const at::Tensor& host, int32_t replica) override {
    const exe::External& what = externalAt(executable_, external);
    if (what.slot < 0) return;
    checkUpload(executable_, what, host);
    const Bytes contents = bytesOf(host);
    for (int32_t r = 0; r < executable_.replicas; ++r)
      if (replica == kAllReplicas || replica == r) null_.setExternal(external, r, contents);
  }
  void download(int32_t external, at::Tensor& host, int32_t replica) const override {
    const exe::External& what = externalAt(executable_, external);
    if (what.slot < 0) return;
    checkDownload(executable_, what, host);
    host.detach().copy_(value(external, replica));
  }
  at::Tensor value(int32_t external, int32_t replica) const override {
    const exe::External& what = externalAt(executable_, external);
    if (what.slot < 0) return {};
    return tensorOf(null_.external(external, replica), executable_.slots[what.slot].type);
  }
  bool placeIn(int32_t /*external*/, const at::Tensor& /*host*/) override { return false; }
  bool writes(int32_t external) const override {
    const exe::External& what = externalAt(executable_, external);
    return what.slot >= 0 &&
           std::ranges::any_of(slotsOf(what), [&](int32_t slot) { return written_.overlaps(executable_.slots[slot]); });
  }

  void bindInputs(const std::vector<at::Tensor>& inputs) override;
  void bindOutputs(const std::vector<std::vector<at::Tensor>>& outputs) override {
    checkOutputs(executable_, outputs);
    outputs_ = outputs;
  }

  void setHyper(int group, const std::string& name, double value) override {
    std::vector<kernels::Hyper> any(1);
    kernels::setNumber(any, 0, name, value);
    null_.setNumber(group, name, value);
  }
  GradientSizes takeGradientSizes() override { return {}; }

  void setGenerator(const at::Generator& generator) override { start_ = generator.clone(); }
  void setOwnStreams(std::vector<OwnStream> /*streams*/) override {}
  at::Generator generator() const override { return start_.clone(); }
  at::Generator newGenerator(uint64_t seed) const override { return at::detail::createCPUGenerator(seed); }
  void setRounding(const RoundingPosition& position) override { rounding_ = position; }
  RoundingPosition rounding() const override { return rounding_; }

  int64_t allocatedBytes(int32_t worker) const override { return exe::residentBytes(executable_, worker); }
  int64_t residentBytes(int32_t worker) const override { return allocatedBytes(worker); }
  int64_t fileBytes() const override { return 0; }
  Allocations allocations() const override { return {}; }

 private:
  void fillInitial();
  void fillOutputs();
  void advanceGenerator();
  /// False for a result whose micro-batch has no bound tensor.
  bool isWanted(int32_t slot, int32_t micro_batch) const {
    const auto target = std::ranges::find(executable_.output_slots, slot);
    if (target == executable_.output_slots.end()) return true;
    const std::vector<at::Tensor>& bound = outputs_[target - executable_.output_slots.begin()];
    return static_cast<std::size_t>(micro_batch) < bound.size() && bound[micro_batch].defined();
  }

  const exe::Executable& executable_;
  runtime::WrittenMemory written_;
  NullBackend null_;
  std::vector<std::vector<at::Tensor>> outputs_;
  RoundingPosition rounding_;
  at::Generator start_;
};

void NullTensors::fillInitial() {
  for (std::size_t i = 0; i < executable_.externals.size(); ++i) {
    const exe::External& what = executable_.externals[i];
    if (what.slot < 0) continue;
    const bool is_own = what.kind == exe::ExternalKind::kAccumulator || what.kind == exe::ExternalKind::kState;
    const Type& type = executable_.slots[what.slot].type;
    upload(static_cast<int32_t>(i), at::full(type.sizes, is_own ? what.initial : 0.0, memory::scalarType(type.dtype)),
           kAllReplicas);
  }
}

void NullTensors::bindInputs(const std::vector<at::Tensor>& inputs) {
  checkInputs(executable_, inputs);
  const int64_t num_parts = executable_.inputParts(), parts = executable_.micro_batches * num_parts;
  for (int64_t i = 0; i < executable_.numInputs(); ++i) {
    if (executable_.input_slots[i] < 0) continue;
    const Type& type = executable_.slots[executable_.input_slots[i]].type;
    for (int64_t k = 0; k < parts; ++k) {
      Bytes memory(static_cast<std::size_t>(type.extentBytes()));
      scatter(memory.data(), type,
              bytesOf(parts > 1 ? inputs[i].narrow(0, k * type.sizes[0], type.sizes[0]) : inputs[i]));
      for (int32_t r = 0; r < executable_.replicas; ++r)
        if (executable_.inputPart(r) == k % num_parts)
          null_.setInput(static_cast<int32_t>(r * executable_.numInputs() + i), static_cast<int32_t>(k / num_parts),
                         memory);
    }
  }
}

void NullTensors::fillOutputs() {
  const c10::InferenceMode no_autograd;
  for (std::size_t target = 0; target < outputs_.size(); ++target) {
    if (executable_.output_slots[target] < 0) continue;
    const Type& type = executable_.slots[executable_.output_slots[target]].type;
    std::unordered_set<const c10::TensorImpl*> filled;
    for (std::size_t k = 0; k < outputs_[target].size(); ++k) {
      const at::Tensor& bound = outputs_[target][k];
      const Bytes& contents = null_.output(static_cast<int32_t>(target), static_cast<int32_t>(k));
      if (!bound.defined() || contents.empty()) continue;
      const at::Tensor value = tensorOf(contents, type);
      filled.insert(bound.unsafeGetTensorImpl()).second ? bound.copy_(value) : bound.add_(value);
    }
  }
}

void NullTensors::advanceGenerator() {
  auto* generator = start_.get<at::CPUGeneratorImpl>();
  const int64_t all = executable_.allMicroBatches(), normals = executable_.normals.count * all;
  // The device has no numbers, so the last two draws of a pair take the place of its spare.
  const bool from_spare = generator->next_double_normal_sample().has_value();
  if (normals > 0) generator->set_next_double_normal_sample(std::nullopt);
  const int64_t draws = executable_.random_draws * all + drawsOfNormals(normals, from_spare);
  for (int64_t i = 0; i < draws; ++i) generator->random();
  if (normals > 0 && leavesSpare(normals, from_spare)) generator->set_next_double_normal_sample(0);
}

}  // namespace

std::unique_ptr<DeviceBackend> makeNullBackend(const exe::Executable& executable, const DeviceOptions& options) {
  return std::make_unique<NullTensors>(executable, options);
}

}  // namespace abele::device

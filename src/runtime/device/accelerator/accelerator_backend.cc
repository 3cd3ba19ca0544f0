// The device contract on an accelerator of torch, by LibTorch's device-generic classes.
#include <algorithm>
#include <cmath>
#include <optional>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/error.h"
#include "base/instructions.h"
#include "runtime/device/accelerator/accelerator_device.h"
#include "runtime/device/accelerator/staging.h"
#include "runtime/device/aten/own_call.h"
#include "runtime/device/checks.h"
#include "runtime/kernels/basic.h"
#include "runtime/kernels/fixed_shapes.h"
#include "runtime/kernels/grad_modes.h"
#include "runtime/written_memory.h"

namespace abele::runtime {
namespace {

std::string kindsHere() {
  const std::optional<c10::DeviceType> type = at::accelerator::getAccelerator();
  if (!type || at::accelerator::deviceCount() == 0) return "no accelerator";
  return cat(static_cast<int>(at::accelerator::deviceCount()), " of ", c10::DeviceTypeName(*type, /*lower_case=*/true));
}

/// Throws E0702 for a device that is not there.
c10::Device deviceOf(const std::string& name) {
  const std::optional<c10::DeviceType> type = at::accelerator::getAccelerator();
  const int count = type ? at::accelerator::deviceCount() : 0;
  const auto refuse = [&] {
    throwUser(ErrorCode::E0702, {.what = cat("there is no device ", name.empty() ? "accelerator" : name),
                                 .found = kindsHere(),
                                 .expected = "a device that torch has here",
                                 .remedy = "use cpu devices, or install a torch for this accelerator"});
  };
  if (count == 0) refuse();
  if (name.empty()) return {*type, 0};
  const std::string kind = c10::DeviceTypeName(*type, /*lower_case=*/true);
  if (name.substr(0, name.find(':')) != kind) refuse();
  const c10::Device device(name);
  if (device.index() >= count) refuse();
  return {device.type(), std::max<c10::DeviceIndex>(device.index(), 0)};
}

/// What accelerators cannot do yet.
void checkSupported(const exe::Executable& executable, const DeviceOptions& options) {
  const auto refuse = [](bool asked, const char* what) {
    ABELE_REQUIRE(
        !asked, E0711,
        {.what = cat(what, " is not available on accelerators yet"), .remedy = "run the model on CPU devices"});
  };
  refuse(options.floating_point_exceptions, "detection of floating-point exceptions");
  refuse(options.stochastic_rounding, "stochastic rounding");
  refuse(options.gradient_edge > 0, "automatic loss scaling");
  refuse(options.peers != nullptr || executable.processes > 1 || executable.stage_processes > 1,
         "training by several processes");
  refuse(std::ranges::any_of(executable.groups, [](const exe::Group& group) { return group.off_chip; }),
         "off-chip memory");
}

c10::Stream newStream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

class AcceleratorBackend final : public DeviceBackend {
  template <class Fn>
  auto onCopyStream(Fn fn) const {
    const c10::InferenceMode no_autograd;
    const c10::StreamGuard on_copies(copies_);
    return fn();
  }

 public:
  AcceleratorBackend(const exe::Executable& executable, const DeviceOptions& options)
      : executable_(executable),
        watch_(options.watch),
        device_(deviceOf(options.accelerator)),
        copies_(newStream(device_)),
        slots_(onCopyStream(
            [&] { return std::make_unique<SlotTable>(executable, OffChipStorage{}, /*stage_process=*/0, device_); })),
        written_(executable),
        hypers_(countHyperGroups(executable)),
        events_(executable, device_.type()),
        staging_(executable, *slots_, copies_),
        rounding_{.seed = options.rounding_seed},
        start_(runtime::newGenerator(device_)) {
    for (size_t i = 0; i < executable.workers.size(); ++i) streams_.push_back(newStream(device_));
    random_.resize(executable.workers.size());
    onCopyStream([&] {
      placeNumbers();
      fillInitial();
      findRestored();
    });
    copies_.synchronize();
  }
  ~AcceleratorBackend() override {
    for (const c10::Stream& stream : streams_) quietly([&] { stream.synchronize(); });
    quietly([&] { copies_.synchronize(); });
  }

  std::unique_ptr<Device> makeDevice(int32_t worker) override {
    return std::make_unique<AcceleratorDevice>(executable_, worker, *slots_, hypers_, random_[worker], gradients_,
                                               events_, streams_[worker], watch_);
  }
  // A worker enqueues and waits for nobody but its stream.
  bool canWorkOnThisThread(int32_t /*worker*/) const override { return true; }

  void begin(int64_t /*step*/) override {
    gradients_.overflowed = false;
    events_.begin();
    for (RandomPosition& random : random_) random.begin(start_);
    onCopyStream([&] {
      for (const Saved& saved : restored_) copyInto(saved.copy, slots_->tensor(saved.slot, 0));
    });
    events_.inputs().record(copies_);
  }

  void finish(bool completed) override {
    std::optional<UserError> error = waitForWorkers();
    if (completed && !error) {
      staging_.fetchOutputs();
      start_.set_offset(start_.get_offset() + static_cast<uint64_t>(executable_.random_draws *
                                                                    executable_.micro_batches * executable_.replicas));
      ++rounding_.step;
      return;
    }
    onCopyStream([&] {
      for (const Saved& saved : restored_) copyInto(slots_->tensor(saved.slot, 0), saved.copy);
    });
    copies_.synchronize();
    if (completed) throw *error;
  }

  void upload(int32_t external, const at::Tensor& host, int32_t replica) override {
    const exe::External& what = externalAt(executable_, external);
    if (what.slot < 0) return;
    checkUpload(executable_, what, host);
    staging_.waitForCaller(host);
    onCopyStream([&] {
      for (int32_t slot : replica == kAllReplicas ? slotsOf(what) : std::vector<int32_t>{what.slotOf(replica)})
        slots_->tensor(slot, 0).copy_(host);
    });
    copies_.synchronize();
  }

  void download(int32_t external, at::Tensor& host, int32_t replica) const override {
    const exe::External& what = externalAt(executable_, external);
    if (what.slot < 0) return;
    checkDownload(executable_, what, host);
    staging_.waitForCaller(host);
    const c10::AutoGradMode no_grad(false);
    const c10::StreamGuard on_copies(copies_);
    host.copy_(slots_->tensor(what.slotOf(replica), 0));
    copies_.synchronize();
  }

  at::Tensor value(int32_t external, int32_t replica) const override {
    const exe::External& what = externalAt(executable_, external);
    if (what.slot < 0) return {};
    const Type& type = executable_.slots[what.slot].type;
    at::Tensor result = at::empty_strided(type.sizes, type.strides, scalarType(type.dtype));
    download(external, result, replica);
    return result;
  }

  bool placeIn(int32_t /*external*/, const at::Tensor& /*host*/) override { return false; }
  bool writes(int32_t external) const override {
    const exe::External& what = externalAt(executable_, external);
    return what.slot >= 0 &&
           std::ranges::any_of(slotsOf(what), [&](int32_t slot) { return written_.overlaps(executable_.slots[slot]); });
  }

  void bindInputs(const std::vector<at::Tensor>& inputs) override {
    checkInputs(executable_, inputs);
    staging_.bindInputs(inputs);
  }
  void bindOutputs(const std::vector<std::vector<at::Tensor>>& outputs) override {
    checkOutputs(executable_, outputs);
    staging_.bindOutputs(outputs);
  }

  void setHyper(int group, const std::string& name, double value) override {
    if (group < 0 || static_cast<std::size_t>(group) >= hypers_.size()) return;  // a group without parameters here
    ABELE_REQUIRE(setNumber(hypers_[static_cast<std::size_t>(group)], name, value), E0706,
                  {.what = cat("hyper-parameter ", name, " is not one of the device's optimizers")});
  }
  GradientSizes takeGradientSizes() override { return {0, 0, gradients_.overflowed.exchange(false)}; }

  void setGenerator(const at::Generator& generator) override {
    ABELE_CHECK(generator.device().type() == device_.type(), "a generator of ", generator.device().str());
    start_ = generator.clone();
  }
  at::Generator generator() const override { return start_.clone(); }
  at::Generator newGenerator(uint64_t seed) const override {
    at::Generator made = runtime::newGenerator(device_);
    made.set_current_seed(seed);
    return made;
  }
  void setRounding(const RoundingPosition& position) override { rounding_ = position; }
  RoundingPosition rounding() const override { return rounding_; }

  int64_t allocatedBytes(int32_t worker) const override {
    int64_t bytes = 0;
    for (std::size_t g = 0; g < executable_.groups.size(); ++g)
      if (std::max(executable_.groups[g].worker, 0) == worker) bytes += slots_->groupBytes(static_cast<int32_t>(g));
    return bytes;
  }
  int64_t residentBytes(int32_t worker) const override { return allocatedBytes(worker); }
  int64_t fileBytes() const override { return 0; }
  Allocations allocations() const override { return {}; }

 private:
  struct Saved {
    int32_t slot;
    at::Tensor copy;
  };

  template <class Fn>
  static void quietly(Fn fn) {
    try {
      fn();
    } catch (const std::exception&) {  // the step that caused it has told its caller
    }
  }

  std::optional<UserError> waitForWorkers();
  void placeNumbers();
  void fillInitial();
  void findRestored();

  const exe::Executable& executable_;
  Watch* watch_;
  c10::Device device_;
  c10::Stream copies_;  // inputs, results, weights
  std::unique_ptr<SlotTable> slots_;
  WrittenMemory written_;
  std::vector<Hyper> hypers_;
  std::vector<c10::Stream> streams_;    // by worker
  std::vector<RandomPosition> random_;  // by worker
  GradientCount gradients_;
  StepEvents events_;
  Staging staging_;
  RoundingPosition rounding_;
  at::Generator start_;          // where the next step's micro-batch 0 starts
  std::vector<Saved> restored_;  // what a failed step has to give back
};

// Returns what a kernel threw after the last look at the streams.
std::optional<UserError> AcceleratorBackend::waitForWorkers() {
  std::optional<UserError> first;
  for (const c10::Stream& stream : streams_) {
    try {
      stream.synchronize();
    } catch (const c10::Error& error) {
      if (!first)
        first.emplace(ErrorCode::E0601, Message{.what = error.what_without_backtrace(),
                                                .at = device_.str(),
                                                .remedy = "check the values that the step was given"});
    }
  }
  return first;
}

// Numbers that the host computes with live in its memory.
void AcceleratorBackend::placeNumbers() {
  for (const exe::Segment& segment : executable_.segments)
    for (const exe::Instruction& instruction : segment.instructions) {
      if (!isOwn(instruction.op)) continue;
      for (const int32_t slot : slotsReadByHost(instruction)) {
        if (slot < 0 || slots_->tensor(slot, 0).is_cpu()) continue;
        for (int64_t frame = 0; frame < slots_->framesOf(executable_.slots[slot].group); ++frame)
          slots_->bindOutput(slot, frame, at::zeros(executable_.slots[slot].type.sizes, at::kFloat));
      }
    }
}

void AcceleratorBackend::fillInitial() {
  for (std::size_t g = 0; g < executable_.groups.size(); ++g) {
    const Region* region = slots_->region(static_cast<int32_t>(g));
    if (!region || region->bytes() == 0 || executable_.groups[g].kind != exe::GroupKind::kPersistent) continue;
    tensorOver({region->frame(0), device_}, contiguousType(DType::kUInt8, {region->bytes()})).zero_();
  }
  for (const exe::External& external : executable_.externals)
    if (external.slot >= 0 && (external.initial != 0 || std::signbit(external.initial)) &&
        (external.kind == exe::ExternalKind::kAccumulator || external.kind == exe::ExternalKind::kState))
      for (int32_t slot : slotsOf(external)) slots_->tensor(slot, 0).fill_(external.initial);
}

// As on CPU devices: a step's last updates all run or none (StepEvents::requireNoError), so one update a step needs no
// copy.
void AcceleratorBackend::findRestored() {
  for (const exe::External& external : executable_.externals) {
    const bool updated = executable_.device_iterations > 1 &&
                         (external.kind == exe::ExternalKind::kParameter || external.kind == exe::ExternalKind::kState);
    if (external.slot < 0 || (external.kind != exe::ExternalKind::kBuffer && !updated)) continue;
    for (int32_t own : slotsOf(external))
      if (written_.overlaps(executable_.slots[own])) restored_.push_back({own, slots_->tensor(own, 0).clone()});
  }
}

}  // namespace

std::unique_ptr<DeviceBackend> makeAcceleratorBackend(const exe::Executable& executable, const DeviceOptions& options) {
  registerFixedShapeOperators();
  registerGradModeOperators();
  checkOptions(options);
  checkSupported(executable, options);
  return std::make_unique<AcceleratorBackend>(executable, options);
}

}  // namespace abele::runtime

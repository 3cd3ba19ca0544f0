#include "device/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "base/error.h"
#include "base/instructions.h"
#include "base/own_generator.h"
#include "collective/peers.h"
#include "device/aten/arena.h"
#include "device/aten/own_call.h"
#include "device/checks.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/random_stream.h"
#include "device/processes/stage_shares.h"
#include "device/processes/step_agreement.h"
#include "kernels/basic.h"
#include "kernels/operator_forms.h"
#include "memory/reused_pages.h"
#include "memory/steering_allocator.h"
#include "runtime/written_memory.h"

namespace abele::device {
namespace {

class CpuBackendImpl final : public CpuBackend {
 public:
  CpuBackendImpl(const exe::Executable& executable, const DeviceOptions& options)
      : executable_(executable),
        options_(options),
        slots_(executable, {options.off_chip_memory_limit, options.off_chip_folder}, options.stage_process),
        shared_(executable, options),
        written_(executable),
        hypers_(countHyperGroups(executable)),
        rounding_{.seed = options.rounding_seed},
        agreement_(executable, options.stage_process, [this](int32_t slot) { return slots_.tensor(slot, 0); }),
        step_agreement_(executable, options),
        exchange_(executable),
        start_(at::detail::createCPUGenerator()) {
    checkOptions(options);
    const size_t num_workers = executable.workers.size();
    const bool is_alone = num_workers == 1 && executable.processes == 1;
    const exe::Instruction* varying = findVarying();
    if (!is_alone && varying) refuseVarying(*varying);
    for (size_t i = 0; i < num_workers; ++i) streams_.emplace_back(varying != nullptr);
    fillInitial();
    reusePages();
    findRestored();
  }

  std::unique_ptr<runtime::Device> makeDevice(int32_t worker) override {
    requireOwnStreams(worker);
    std::vector<WorkerCalls::OwnSource> sources;
    for (Own& own : own_) {
      const int64_t restarts = own.what.restarts ? 0 : 1;
      sources.push_back({&own.streams[worker], own.what.draws * restarts, own.what.normals.count * restarts});
    }
    return std::make_unique<CpuDevice>(executable_, worker, slots_, hypers_, streams_[worker], options_, gradients_,
                                       rounding_, agreement_, shared_, exchange_, profile_, std::move(sources));
  }

  bool canWorkOnThisThread(int32_t /*worker*/) const override {
    // If the caller's thread waited for other processes or replicas, the caller could not be interrupted.
    return !options_.peers && !exchange_.hasWaits() && at::get_num_threads() == options_.threads_per_device;
  }

  bool movesOffChipMemory() const override { return fileBytes() > 0; }
  void fetch(const exe::FrameUse& use) override { slots_.region(use.group)->fetch(use.frame, use.writes); }
  void release(const exe::FrameUse& use) override { slots_.region(use.group)->release(use.frame); }

  void interrupt() override {
    exchange_.interrupt();
    if (options_.peers) options_.peers->interrupt();
  }

  void begin(int64_t /*step*/) override {
    profile_.begin();
    exchange_.begin();
    if (options_.peers) options_.peers->begin();
    const c10::InferenceMode no_autograd;
    gradients_.large = gradients_.all = 0;
    gradients_.overflowed = false;
    if (is_random_)
      for (RandomStream& stream : streams_) stream.begin(start_);
    for (Own& own : own_) beginOwn(own);
    for (Saved& saved : restored_) kernels::copyInto(saved.copy, slots_.tensor(saved.slot, 0));
    if (options_.stochastic_rounding) agreement_.setRounding(rounding_);
    step_agreement_.begin(agreement_.hyperHash(), start_, rounding_);
  }

  void agree() override { step_agreement_.agree(); }

  void finish(bool completed) override {
    if (completed) {
      shareStep();
      advanceGenerator();
      for (Own& own : own_) advanceOwn(own);
      ++rounding_.step;
      return;
    }
    if (options_.peers) options_.peers->fail("its step failed");
    putBack();
    releaseAll();
  }

  // Gives the results to all processes. If an update can fail, no process counts its step before all are done.
  void shareStep() {
    if (!shared_.isNeeded()) return;
    try {
      if (options_.floating_point_exceptions) options_.peers->exchange(" ");
    } catch (...) {
      putBack();
      throw;
    }
    shared_.shareResults(std::exchange(bound_outputs_, {}));
    options_.peers->begin();
  }

  void putBack() {
    const c10::InferenceMode no_autograd;
    for (const Saved& saved : restored_) {
      // A failed operator may have left the sizes of its own result on the slot that it writes.
      const Type& type = executable_.slots[saved.slot].type;
      const at::Tensor& tensor = slots_.tensor(saved.slot, 0);
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(type.sizes, type.strides);
      kernels::copyInto(tensor, saved.copy);
    }
  }

  void upload(int32_t external, const at::Tensor& host, int32_t replica) override {
    const exe::External& what = externalAt(executable_, external);
    if (what.slot < 0) return;
    checkUpload(executable_, what, host);
    if (!options_.has_own_weights_alone) step_agreement_.noteUpload(external, host);
    if (what.kind == exe::ExternalKind::kParameter || what.kind == exe::ExternalKind::kState) agreement_.noteUpload();
    const c10::InferenceMode no_autograd;
    for (int32_t slot : replica == kAllReplicas ? slotsOf(what) : exe::slotsOf(what, replica)) {
      if (!isHere(slot) || isPlacedIn(slot, host)) continue;
      expectWrite(slot);
      slots_.tensor(slot, 0).copy_(contentsOf(executable_, what, slot, host));
      releasePagesOf(slot);
    }
  }

  void download(int32_t external, at::Tensor& host, int32_t replica) const override {
    const exe::External& what = externalAt(executable_, external);
    if (what.slot < 0) return;
    checkDownload(executable_, what, host);
    const c10::AutoGradMode no_grad(false);
    if (shared_.isNeeded() && !options_.has_own_weights_alone) {
      host.copy_(sharedValue(what, replica));
      return;
    }
    for (int32_t slot : exe::slotsOf(what, replica)) {
      if (!isHere(slot)) continue;
      if (isPlacedIn(slot, host)) return;
      host.copy_(slots_.sharedTensor(slot));
      return releasePagesOf(slot);
    }
  }

  at::Tensor memory(int32_t external) const override {
    const exe::External& what = externalAt(executable_, external);
    if (what.slot < 0) return {};
    const std::vector<int32_t> slots = slotsOf(what);
    if (slots.size() != 1 || !isHere(slots[0])) return {};
    // Pages of a file would stay in memory if the caller held them.
    return slots_.region(executable_.slots[slots[0]].group)->isInFile() ? at::Tensor() : slots_.sharedTensor(slots[0]);
  }

  at::Tensor value(int32_t external, int32_t replica) const override {
    if (shared_.isNeeded()) {
      const exe::External& what = externalAt(executable_, external);
      return what.slot < 0 ? at::Tensor() : sharedValue(what, replica);
    }
    const at::Tensor inside = this->external(external, replica);
    return inside.defined() ? inside.clone() : inside;
  }

  bool placeIn(int32_t external, const at::Tensor& host) override {
    const exe::External& what = externalAt(executable_, external);
    if (what.slot < 0) return false;
    const std::vector<int32_t> slots = slotsOf(what);
    const Type& type = executable_.slots[what.slot].type;
    if (slots.size() != 1 || !isHere(slots[0]) || slots_.region(executable_.slots[slots[0]].group)->isInFile())
      return false;
    if (host.defined() && (!memory::hasShape(host, type) || !memory::isLaidOutAs(host, type))) return false;
    return slots_.placeIn(slots[0], host);
  }

  bool writes(int32_t external) const override {
    const exe::External& what = externalAt(executable_, external);
    return what.slot >= 0 &&
           std::ranges::any_of(slotsOf(what), [&](int32_t slot) { return written_.overlaps(executable_.slots[slot]); });
  }

  at::Tensor external(int32_t index, int32_t replica) const override {
    const exe::External& what = externalAt(executable_, index);
    return what.slot < 0 ? at::Tensor() : slots_.sharedTensor(what.slotOf(replica));
  }

  void bindInputs(const std::vector<at::Tensor>& inputs) override;
  void bindOutputs(const std::vector<std::vector<at::Tensor>>& outputs) override;
  void setHyper(int group, const std::string& name, double value) override {
    if (kernels::setNumber(hypers_, group, name, value)) agreement_.setHyper(group, name, value);
  }

  GradientSizes takeGradientSizes() override {
    return {gradients_.large.exchange(0), gradients_.all.exchange(0), gradients_.overflowed.exchange(false)};
  }

  void setGenerator(const at::Generator& generator) override { start_ = generator.clone(); }
  at::Generator generator() const override { return start_.clone(); }
  at::Generator newGenerator(uint64_t seed) const override { return at::detail::createCPUGenerator(seed); }
  void setOwnStreams(std::vector<OwnStream> streams) override;
  void setRounding(const RoundingPosition& position) override { rounding_ = position; }
  RoundingPosition rounding() const override { return rounding_; }

  int64_t allocatedBytes(int32_t worker) const override {
    int64_t bytes = 0;
    for (std::size_t g = 0; g < executable_.groups.size(); ++g)
      if (std::max(executable_.groups[g].worker, 0) == worker && !executable_.groups[g].off_chip)
        bytes += slots_.groupBytes(static_cast<int32_t>(g));
    return bytes;
  }

  int64_t residentBytes(int32_t worker) const override {
    int64_t bytes = 0;
    for (std::size_t g = 0; g < executable_.groups.size(); ++g)
      if (std::max(executable_.groups[g].worker, 0) == worker && !executable_.groups[g].off_chip)
        bytes += slots_.groupResidentBytes(static_cast<int32_t>(g));
    return bytes;
  }

  int64_t fileBytes() const override {
    int64_t bytes = 0;
    for (std::size_t g = 0; g < executable_.groups.size(); ++g)
      if (const Region* region = slots_.region(static_cast<int32_t>(g)); region && region->isInFile())
        bytes += region->bytes();
    return bytes;
  }

  Allocations allocations() const override { return {memory::cpuAllocatorMisses(), memory::cpuAllocatorMissBytes()}; }

  void releaseAll() override {
    for (std::size_t g = 0; g < executable_.groups.size(); ++g)
      if (const Region* region = slots_.region(static_cast<int32_t>(g)); region && region->isInFile())
        for (int32_t frame = 0; frame < executable_.groups[g].frames; ++frame) region->release(frame);
  }

 private:
  struct Saved {
    int32_t slot;
    at::Tensor copy;
  };
  /// A generator of the user's program.
  struct Own {
    OwnStream what;
    std::vector<RandomStream> streams;  // by worker
  };

  at::Tensor sharedValue(const exe::External& external, int32_t replica) const {
    return shared_.value(external.slotOf(replica), [this](int32_t slot) { return slots_.sharedTensor(slot); });
  }
  bool isHere(int32_t slot) const { return slots_.isHere(executable_.slots[slot].group); }
  // Whether the host's tensor is the slot's memory.
  bool isPlacedIn(int32_t slot, const at::Tensor& host) const {
    return host.const_data_ptr() == slots_.tensor(slot, 0).const_data_ptr();
  }
  // Whether the pages of a capture or of a device that is gone are of use to the region.
  static bool reuses(const Region* region) {
    return region && !region->isInFile() && region->bytes() >= 2 * memory::ReusedPages::kPage;
  }
  // Called before the host writes a persistent slot.
  void expectWrite(int32_t slot) const {
    memory::ReusedPages* pages = memory::IntoReusedPages::pages();
    if (!pages || slots_.placedIn(slot).defined()) return;
    const Region& region = *slots_.region(executable_.slots[slot].group);
    if (!reuses(&region)) return;
    const Type& type = executable_.slots[slot].type;
    char* begin = static_cast<char*>(slots_.tensor(slot, 0).mutable_data_ptr());
    pages->expectWrite(begin, begin + type.extentBytes(), region.frame(0), region.frame(0) + region.bytes());
    // The gaps between its elements stay zero.
    if (type.numel() < type.extent()) std::memset(begin, 0, static_cast<size_t>(type.extentBytes()));
  }
  // Gives memory that steps will write such pages. Weights get theirs when they are uploaded, because they may be in
  // other memory.
  void reusePages() const {
    memory::ReusedPages* pages = memory::IntoReusedPages::pages();
    if (!pages) return;
    for (std::size_t g = 0; g < executable_.groups.size(); ++g)
      if (const Region* region = slots_.region(static_cast<int32_t>(g));
          reuses(region) && executable_.groups[g].kind != exe::GroupKind::kPersistent)
        pages->fill(region->frame(0), region->frame(0) + region->bytes());
    for (const exe::External& external : executable_.externals)
      if (external.slot >= 0 &&
          (external.kind == exe::ExternalKind::kAccumulator || external.kind == exe::ExternalKind::kState))
        for (const int32_t slot : slotsOf(external)) {
          if (!reuses(slots_.region(executable_.slots[slot].group))) continue;
          char* begin = static_cast<char*>(slots_.tensor(slot, 0).mutable_data_ptr());
          pages->fill(begin, begin + executable_.slots[slot].type.extentBytes());
        }
  }
  // Called when the host has read or written a slot outside a step: pages of a file may leave memory.
  void releasePagesOf(int32_t slot) const {
    const Region* region = slots_.region(executable_.slots[slot].group);
    if (!region->isInFile()) return;
    char* begin = static_cast<char*>(slots_.tensor(slot, 0).mutable_data_ptr());
    char* page = begin - reinterpret_cast<uintptr_t>(begin) % static_cast<uintptr_t>(memory::pageBytes());
    memory::releasePages(page, begin + executable_.slots[slot].type.extentBytes() - page);
  }
  const exe::Instruction* findVarying() const;
  bool drawsAny() const;
  [[noreturn]] void refuseVarying(const exe::Instruction& instruction) const;
  void fillInitial();
  void findRestored();
  void advanceGenerator();
  void requireOwnStreams(int32_t worker) const;
  void beginOwn(Own& own);
  void advanceOwn(Own& own);
  void bindInput(int64_t index, const at::Tensor& input);

  const exe::Executable& executable_;
  DeviceOptions options_;
  SlotTable slots_;
  StageShares shared_;  // shared with the processes that hold other stages
  runtime::WrittenMemory written_;
  std::vector<kernels::Hyper> hypers_;
  std::vector<RandomStream> streams_;  // by worker
  std::vector<Own> own_;
  GradientCount gradients_;       // for this step
  RoundingPosition rounding_;     // for the next step, or for the running one
  Agreement agreement_;           // with the processes that hold other replicas
  StepAgreement step_agreement_;  // with the processes that hold other stages
  ReplicaExchange exchange_;
  StepProfile profile_;
  at::Generator start_;  // start of the random numbers of the next step
  const bool is_random_ = executable_.isRandom() || drawsAny();
  std::vector<Saved> restored_;                         // values to restore if a step fails
  std::vector<std::vector<at::Tensor>> bound_outputs_;  // bound in this step, if other processes get them
  std::vector<at::Tensor> bound_inputs_;                // keeps the caller's memory (or dense copies of it) alive
};

/// Also if the program puts the stream back after it has drawn.
bool CpuBackendImpl::drawsAny() const {
  return std::ranges::any_of(executable_.segments, [](const exe::Segment& segment) {
    return std::ranges::any_of(segment.instructions, &exe::Instruction::isRandom);
  });
}

/// An operator whose number of draws depends on values.
const exe::Instruction* CpuBackendImpl::findVarying() const {
  for (const exe::Segment& segment : executable_.segments)
    for (const exe::Instruction& instruction : segment.instructions)
      if (instruction.draws_vary) return &instruction;
  return nullptr;
}

void CpuBackendImpl::refuseVarying(const exe::Instruction& instruction) const {
  throwUser(
      ErrorCode::E0106,
      {.what = cat(instruction.op,
                   " draws a number of random numbers that depends on values, and other operators draw after it"),
       .at = instruction.source < 0 ? "" : executable_.sources[instruction.source],
       .found = cat(executable_.workers.size(), " stages and replicas, which cannot know how many it draws"),
       .expected = "one stage that runs the whole program, on one device",
       .remedy = "draw these numbers before the call and pass them as an input, or put all blocks on one device"});
}

// Memory starts as zeros; writing zeros would only take up the pages.
void CpuBackendImpl::fillInitial() {
  const c10::InferenceMode no_autograd;
  for (const exe::External& external : executable_.externals)
    if (external.slot >= 0 && (external.initial != 0 || std::signbit(external.initial)) &&
        (external.kind == exe::ExternalKind::kAccumulator || external.kind == exe::ExternalKind::kState))
      for (int32_t slot : slotsOf(external)) {
        if (!isHere(slot)) continue;
        expectWrite(slot);
        slots_.tensor(slot, 0).fill_(external.initial);
        releasePagesOf(slot);
      }
}

// Finds what a failed step may have changed: written buffers and, if a step makes several updates, the weights and the
// optimizer state too. Either all or none of a step's last updates run (runtime.cc). So with one update a step nothing
// needs a copy, unless an update itself can fail.
void CpuBackendImpl::findRestored() {
  const c10::InferenceMode no_autograd;
  for (const exe::External& external : executable_.externals) {
    const bool updated = (executable_.device_iterations > 1 || options_.floating_point_exceptions) &&
                         (external.kind == exe::ExternalKind::kParameter || external.kind == exe::ExternalKind::kState);
    if (external.slot < 0 || (external.kind != exe::ExternalKind::kBuffer && !updated)) continue;
    for (int32_t own : slotsOf(external))
      if (isHere(own) && written_.overlaps(executable_.slots[own]))
        restored_.push_back({own, slots_.tensor(own, 0).clone()});
  }
}

void CpuBackendImpl::setOwnStreams(std::vector<OwnStream> streams) {
  ABELE_REQUIRE(streams.empty() || !options_.peers, E0106,
                {.what = "random numbers from a generator of the program in one of several processes",
                 .expected = "the default generator, whose position all processes know",
                 .remedy = "leave the generator out, or draw the numbers before the call and pass them as an input"});
  own_.clear();
  for (OwnStream& stream : streams) {
    Own& own = own_.emplace_back();
    own.what = std::move(stream);
    for (size_t i = 0; i < executable_.workers.size(); ++i) own.streams.emplace_back(findVarying() != nullptr);
  }
}

// Checks the numbers of generators, because a program from a file may name any.
void CpuBackendImpl::requireOwnStreams(int32_t worker) const {
  for (const exe::Action& action : executable_.workers[worker].actions)
    for (const exe::Instruction& instruction : executable_.segments[action.segment].instructions)
      ABELE_REQUIRE(ownGenerator(instruction.args) <= static_cast<int64_t>(own_.size()), E0501,
                    {.what = cat(instruction.op, " draws from a generator that the program does not have"),
                     .remedy = "compile the program in this process"});
}

void CpuBackendImpl::beginOwn(Own& own) {
  at::Generator start = own.what.restarts ? own.what.start : own.what.generator;
  const std::lock_guard lock(start.mutex());
  for (RandomStream& stream : own.streams) stream.begin(start);
}

/// The stream of the worker that drew last is closest to the end of the step.
RandomStream& lastOf(std::vector<RandomStream>& streams) {
  return *std::max_element(streams.begin(), streams.end(),
                           [](const RandomStream& a, const RandomStream& b) { return a.position() < b.position(); });
}

void CpuBackendImpl::advanceOwn(Own& own) {
  const OwnStream& what = own.what;
  const int64_t all = what.restarts ? 1 : executable_.allMicroBatches(), draws = what.draws * all;
  const at::Generator& end = lastOf(own.streams)
                                 .stand({.draws_before = draws,
                                         .normals_before = what.normals.count * all,
                                         .spare = draws - what.draws + what.normals.spare});
  at::Generator generator = what.generator;
  const std::lock_guard lock(generator.mutex());
  generator.set_state(end.get_state());
}

void CpuBackendImpl::advanceGenerator() {
  if (!executable_.isRandom()) return;
  const int64_t all = executable_.allMicroBatches(), draws = executable_.random_draws * all;
  start_ = lastOf(streams_)
               .stand({.draws_before = draws,
                       .normals_before = executable_.normals.count * all,
                       .spare = draws - executable_.random_draws + executable_.normals.spare})
               .clone();
}

void CpuBackendImpl::bindInputs(const std::vector<at::Tensor>& inputs) {
  const c10::InferenceMode no_autograd;
  checkInputs(executable_, inputs);
  step_agreement_.noteInputs(inputs);
  bound_inputs_.clear();
  for (int64_t i = 0; i < executable_.numInputs(); ++i)
    if (executable_.input_slots[i] >= 0) bindInput(i, inputs[i]);
}

void CpuBackendImpl::bindInput(int64_t index, const at::Tensor& input) {
  const Type& type = executable_.slots[executable_.input_slots[index]].type;
  const bool dense = memory::isLaidOutAs(input, type);
  bound_inputs_.push_back(input);
  const int64_t num_parts = executable_.inputParts();
  const int64_t parts = executable_.micro_batches * num_parts;
  const int64_t rows = parts > 1 ? type.sizes[0] : 0;
  const int64_t row_bytes = rows > 0 ? input.stride(0) * input.itemsize() : 0;
  for (int64_t k = 0; k < parts; ++k) {
    const void* data = static_cast<const char*>(input.const_data_ptr()) + k * rows * row_bytes;
    if (!dense) {
      bound_inputs_.push_back(at::empty_strided(type.sizes, type.strides, input.options()));
      kernels::copyInto(bound_inputs_.back(), rows > 0 ? input.narrow(0, k * rows, rows) : input);
      data = bound_inputs_.back().const_data_ptr();
    }
    for (int32_t r = 0; r < executable_.replicas; ++r)
      if (executable_.inputPart(r) == k % num_parts)
        slots_.bindInput(r * executable_.numInputs() + index, k / num_parts, data);
  }
}

void CpuBackendImpl::bindOutputs(const std::vector<std::vector<at::Tensor>>& outputs) {
  checkOutputs(executable_, outputs);
  if (shared_.isNeeded()) bound_outputs_ = outputs;
  for (std::size_t target = 0; target < outputs.size(); ++target) {
    const int32_t slot = executable_.output_slots[target];
    if (slot < 0) continue;
    for (int64_t k = 0; k < executable_.micro_batches; ++k)
      slots_.bindOutput(slot, k, k < static_cast<int64_t>(outputs[target].size()) ? outputs[target][k] : at::Tensor());
  }
}

}  // namespace

std::unique_ptr<CpuBackend> CpuBackend::create(const exe::Executable& executable, const DeviceOptions& options) {
  kernels::registerOperatorForms();
  return std::make_unique<CpuBackendImpl>(executable, options);
}

std::unique_ptr<DeviceBackend> makeCpuBackend(const exe::Executable& executable, const DeviceOptions& options) {
  return CpuBackend::create(executable, options);
}

}  // namespace abele::device

// The device contract on accelerators of torch, by LibTorch's device-generic classes.
#include <algorithm>
#include <cmath>
#include <optional>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>

#include "base/environment.h"
#include "base/error.h"
#include "base/instructions.h"
#include "collective/peers.h"
#include "collective/shared_links.h"
#include "device/accelerator/accelerator_device.h"
#include "device/accelerator/moves.h"
#include "device/accelerator/off_chip_window.h"
#include "device/accelerator/pinned_messages.h"
#include "device/accelerator/places.h"
#include "device/accelerator/staging.h"
#include "device/aten/own_call.h"
#include "device/aten/replica_exchange.h"
#include "device/checks.h"
#include "device/processes/agreement.h"
#include "device/processes/joint_call.h"
#include "device/processes/message_call.h"
#include "device/processes/message_memory.h"
#include "device/processes/stage_shares.h"
#include "device/processes/step_agreement.h"
#include "kernels/basic.h"
#include "kernels/operator_forms.h"
#include "runtime/written_memory.h"

namespace abele::device {
namespace {

std::string kindsHere() {
  const std::optional<c10::DeviceType> type = at::accelerator::getAccelerator();
  if (!type || at::accelerator::deviceCount() == 0) return "no accelerator";
  return cat(static_cast<int>(at::accelerator::deviceCount()), " of ", c10::DeviceTypeName(*type, /*lower_case=*/true));
}

/// Throws E0702 for a device that does not exist.
c10::Device deviceOf(const std::string& name) {
  const std::optional<c10::DeviceType> type = at::accelerator::getAccelerator();
  const int count = type ? at::accelerator::deviceCount() : 0;
  const auto refuse = [&] {
    throwUser(ErrorCode::E0702, {.what = cat("there is no device ", name.empty() ? "accelerator" : name),
                                 .found = kindsHere(),
                                 .expected = "a device that torch has on this machine",
                                 .remedy = "use cpu devices, or install a torch for this accelerator"});
  };
  if (name == "cpu") return c10::Device(c10::DeviceType::CPU);
  if (count == 0) refuse();
  if (name.empty()) return {*type, 0};
  const std::string kind = c10::DeviceTypeName(*type, /*lower_case=*/true);
  if (name.substr(0, name.find(':')) != kind) refuse();
  const c10::Device device(name);
  if (device.index() >= count) refuse();
  return {device.type(), std::max<c10::DeviceIndex>(device.index(), 0)};
}

/// Reads "cuda:0,cuda:1,cpu", by memory space. At least one device is not the host.
std::vector<c10::Device> devicesOf(const std::string& names) {
  std::vector<c10::Device> devices;
  for (std::size_t begin = 0; begin <= names.size();) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    devices.push_back(deviceOf(names.substr(begin, end - begin)));
    begin = end + 1;
  }
  ABELE_CHECK(!std::ranges::all_of(devices, &c10::Device::is_cpu), "no accelerator in ", names);
  return devices;
}

/// The one real device that trained recurrent layers with these kernels gave wrong gradients (docs/devices.md). The
/// program contains the operators only if the device has the library; otherwise torch composes the layers of other
/// operators.
void requireShown(const exe::Executable& executable) {
  if (environmentInteger("ABELE_UNPROVEN_KERNELS", 0) != 0) return;
  for (const exe::Segment& segment : executable.segments)
    for (const exe::Instruction& instruction : segment.instructions)
      ABELE_REQUIRE(
          instruction.op != "aten::_cudnn_rnn_backward" && instruction.op != "aten::miopen_rnn_backward", E0711,
          {.what = "training recurrent layers by the accelerator's own kernels has not been shown to be correct yet",
           .at = cat(instruction.source < 0 ? "" : executable.sources[instruction.source],
                     instruction.source < 0 ? "" : ", ", instruction.op),
           .remedy = "put the blocks of these layers on the CPU, or switch the library off "
                     "(torch.backends.cudnn.enabled = False); ABELE_UNPROVEN_KERNELS=1 lets a check run them"});
}

/// Refuses what accelerators cannot do yet.
void checkSupported(const exe::Executable& executable, const DeviceOptions& options) {
  const auto refuse = [](bool asked, const char* what) {
    ABELE_REQUIRE(
        !asked, E0711,
        {.what = cat(what, " is not available on accelerators yet"), .remedy = "run the model on CPU devices"});
  };
  refuse(options.floating_point_exceptions, "detection of floating-point exceptions");
  refuse(options.stochastic_rounding, "stochastic rounding");
  // A worker that computes would add up the sums, and its window has only its own frames.
  refuse(
      executable.training && executable.processes > 1 && std::ranges::any_of(executable.groups, &exe::Group::off_chip),
      "off-chip memory when replicas train in several processes");
  refuse(ReplicaExchange::isNeeded(executable), "an exchange of values between replicas in forward");
  requireShown(executable);
}

/// The host's stream of random numbers differs from an accelerator's, and a program has only one stream.
void requireNoDraws(const exe::Executable& executable, const exe::WorkerProgram& worker) {
  for (const exe::Action& action : worker.actions)
    for (const exe::Instruction& instruction : executable.segments[action.segment].instructions)
      ABELE_REQUIRE(!instruction.isRandom(), E0711,
                    {.what = cat(instruction.op, " draws random numbers in a CPU stage of a program for accelerators"),
                     .at = instruction.source < 0 ? "" : executable.sources[instruction.source],
                     .expected = "random numbers only in stages on accelerators",
                     .remedy = "put the block of this operator on an accelerator, or all of them on the CPU"});
}

/// Whether it sends to other processes, receives from them, or adds up sums with them.
bool meetsOthers(const exe::Executable& executable, const exe::WorkerProgram& worker) {
  return std::ranges::any_of(worker.actions, [&](const exe::Action& action) {
    return std::ranges::any_of(executable.segments[action.segment].instructions,
                               [](const exe::Instruction& i) { return isMessage(i) || isJoint(i); });
  });
}

class AcceleratorBackend final : public DeviceBackend {
 public:
  AcceleratorBackend(const exe::Executable& executable, const DeviceOptions& options)
      : executable_(executable),
        options_(options),
        devices_(devicesOf(options.accelerator)),
        first_(*std::ranges::find_if_not(devices_, &c10::Device::is_cpu)),
        places_(executable, options.stage_process, devices_,
                {.memory_limit = options.off_chip_memory_limit, .folder = options.off_chip_folder}),
        written_(executable),
        hypers_(countHyperGroups(executable)),
        events_(executable, options.stage_process, places_, first_.type()),
        staging_(executable, options.stage_process, places_),
        shared_(executable, options),
        agreement_(executable, options.stage_process, [this](int32_t slot) { return hostValue(slot); }),
        step_agreement_(executable, options),
        rounding_{.seed = options.rounding_seed},
        start_(device::newGenerator(first_)) {
    for (size_t i = 0; i < executable.workers.size(); ++i) {
      const exe::WorkerProgram& worker = executable.workers[i];
      const c10::Device device = places_.at(worker.space).device();
      if (device.is_cpu()) requireNoDraws(executable, worker);
      random_.emplace_back(device);
      streams_.emplace_back();
      messages_.emplace_back();
      device_messages_.emplace_back();
      if (isMine(worker)) makeStreams(worker, device);
    }
    passages_.resize(executable.workers.size());
    graph_pools_.resize(executable.workers.size(), {0, 0});
    makeWindows();
    fillInitial();
    findRestored();
    for (size_t i = 0; i < executable.workers.size(); ++i)
      large_gradients_.push_back(counterOf(static_cast<int32_t>(i)));
    for (const Place& place : places_) place.wait();
  }
  ~AcceleratorBackend() override {
    forEachStream([](const c10::Stream& stream) { quietly([&] { stream.synchronize(); }); });
    for (const Place& place : places_) quietly([&] { place.wait(); });
  }

  std::unique_ptr<runtime::Device> makeDevice(int32_t worker) override {
    OffChipWindow* const window = windows_[worker].get();
    const SlotTable& slots = window ? window->slots() : places_.ofWorker(worker).slots();
    const WorkerParts parts{slots,
                            window,
                            random_[worker],
                            streams_[worker],
                            large_gradients_[worker],
                            passages_[worker],
                            hasStreamAlone(worker) ? &graph_pools_[worker] : nullptr,
                            messages_[worker].get(),
                            device_messages_[worker].get()};
    // Memory that the calls keep on a device belongs to the streams that use it.
    const c10::MultiStreamGuard on_others(streams_[worker].others);
    const c10::OptionalStreamGuard on_our_stream(streams_[worker].own);
    return std::make_unique<AcceleratorDevice>(executable_, worker, parts, hypers_, gradients_, events_, staging_,
                                               OtherProcesses{shared_, agreement_}, options_, profile_);
  }
  // A worker enqueues work and waits for its own stream only. If it waited for other processes on the caller's thread,
  // the caller could not be interrupted.
  bool canWorkOnThisThread(int32_t worker) const override {
    if (options_.peers) return false;
    return !places_.ofWorker(worker).isHost() || at::get_num_threads() == options_.threads_per_device;
  }

  void interrupt() override {
    if (options_.peers) options_.peers->interrupt();
  }

  // A process updates weights only after the devices of all processes have come this far without an error.
  void agree() override {
    if (const std::optional<UserError> error = waitForWorkers()) throw *error;
    step_agreement_.agree();
  }

  void begin(int64_t /*step*/) override {
    profile_.begin();
    if (options_.peers) options_.peers->begin();
    gradients_.large = gradients_.all = 0;
    gradients_.overflowed = false;
    events_.begin();
    for (std::size_t i = 0; i < large_gradients_.size(); ++i)
      if (const at::Tensor& large = large_gradients_[i]; large.defined())
        places_.ofWorker(static_cast<int32_t>(i)).work([&] { large.zero_(); });
    for (RandomPosition& random : random_) random.begin(start_);
    for (const Saved& saved : restored_)
      places_.ofSlot(saved.slot).work([&] { kernels::copyInto(saved.copy, tensorOf(saved.slot)); });
    for (size_t space = 0; space < places_.size(); ++space)
      if (const Place& place = places_.at(static_cast<int32_t>(space)); !place.isHost())
        events_.begun(static_cast<int32_t>(space)).record(*place.copies());
    step_agreement_.begin(agreement_.hyperHash(), start_, rounding_);
  }

  void finish(bool completed) override {
    // Comes first: streams may wait for messages of other processes, which in turn wait for this process.
    if (!completed && options_.peers) options_.peers->fail("its step failed");
    std::optional<UserError> error = waitForWorkers();
    releasePages();
    if (completed && !error) {
      staging_.fetchOutputs();
      staging_.releaseInputs();
      shareStep();
      countLargeGradients();
      start_.set_offset(start_.get_offset() +
                        static_cast<uint64_t>(executable_.random_draws * executable_.allMicroBatches()));
      ++rounding_.step;
      return;
    }
    if (completed && options_.peers) options_.peers->fail("its step failed");
    for (const Saved& saved : restored_)
      places_.ofSlot(saved.slot).work([&] { kernels::copyInto(tensorOf(saved.slot), saved.copy); });
    for (const Place& place : places_) place.wait();
    staging_.releaseInputs();
    if (completed) throw *error;
  }

  void upload(int32_t external, const at::Tensor& host, int32_t replica) override {
    const exe::External& what = externalAt(executable_, external);
    if (what.slot < 0) return;
    checkUpload(executable_, what, host);
    if (!options_.has_own_weights_alone) step_agreement_.noteUpload(external, host);
    if (what.kind == exe::ExternalKind::kParameter || what.kind == exe::ExternalKind::kState) agreement_.noteUpload();
    std::vector<int32_t> slots = replica == kAllReplicas ? slotsOf(what) : exe::slotsOf(what, replica);
    std::erase_if(slots, [&](int32_t slot) { return !places_.isHere(slot); });
    for (const int32_t slot : slots) {
      const Place& place = places_.ofSlot(slot);
      place.waitForCaller(host);
      place.work([&] { tensorOf(slot).copy_(contentsOf(executable_, what, slot, host)); });
    }
    for (const int32_t slot : slots) places_.ofSlot(slot).wait();
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
    for (const int32_t slot : exe::slotsOf(what, replica)) {
      if (!places_.isHere(slot)) continue;
      const Place& place = places_.ofSlot(slot);
      place.waitForCaller(host);
      const c10::OptionalStreamGuard on_copies(place.copies());
      host.copy_(tensorOf(slot));
      return place.wait();
    }
  }

  at::Tensor value(int32_t external, int32_t replica) const override {
    const exe::External& what = externalAt(executable_, external);
    if (what.slot < 0) return {};
    return shared_.isNeeded() ? sharedValue(what, replica) : hostValue(what.slotOf(replica));
  }

  bool placeIn(int32_t /*external*/, const at::Tensor& /*host*/) override { return false; }
  bool writes(int32_t external) const override {
    const exe::External& what = externalAt(executable_, external);
    return what.slot >= 0 &&
           std::ranges::any_of(slotsOf(what), [&](int32_t slot) { return written_.overlaps(executable_.slots[slot]); });
  }

  void bindInputs(const std::vector<at::Tensor>& inputs) override {
    checkInputs(executable_, inputs);
    step_agreement_.noteInputs(inputs);
    staging_.bindInputs(inputs);
  }
  void bindOutputs(const std::vector<std::vector<at::Tensor>>& outputs) override {
    checkOutputs(executable_, outputs);
    if (shared_.isNeeded()) bound_outputs_ = outputs;
    staging_.bindOutputs(outputs);
  }

  void setHyper(int group, const std::string& name, double value) override {
    if (kernels::setNumber(hypers_, group, name, value)) agreement_.setHyper(group, name, value);
  }
  GradientSizes takeGradientSizes() override {
    return {gradients_.large.exchange(0), gradients_.all.exchange(0), gradients_.overflowed.exchange(false)};
  }

  void setGenerator(const at::Generator& generator) override {
    ABELE_CHECK(generator.device().type() == first_.type(), "a generator of ", generator.device().str());
    start_ = generator.clone();
  }
  at::Generator generator() const override { return start_.clone(); }
  at::Generator newGenerator(uint64_t seed) const override {
    at::Generator made = device::newGenerator(first_);
    made.set_current_seed(seed);
    return made;
  }
  void setRounding(const RoundingPosition& position) override { rounding_ = position; }
  RoundingPosition rounding() const override { return rounding_; }

  int64_t allocatedBytes(int32_t worker) const override {
    int64_t bytes = 0;
    for (std::size_t g = 0; g < executable_.groups.size(); ++g)
      if (std::max(executable_.groups[g].worker, 0) == worker)
        bytes += places_.ofGroup(static_cast<int32_t>(g)).slots().groupBytes(static_cast<int32_t>(g));
    return bytes;
  }
  int64_t residentBytes(int32_t worker) const override {
    return allocatedBytes(worker) + (windows_[worker] ? windows_[worker]->bytes() : 0) + passages_[worker].bytes() +
           SegmentGraphs::poolBytes(places_.ofWorker(worker).device(), graph_pools_[worker]);
  }
  // Fetching and releasing matter for pages of a file. The host's memory needs neither.
  bool movesOffChipMemory() const override { return fileBytes() > 0; }
  void fetch(const exe::FrameUse& use) override { places_.offChip().region(use.group)->fetch(use.frame, use.writes); }
  void release(const exe::FrameUse& use) override { places_.offChip().region(use.group)->release(use.frame); }
  int64_t fileBytes() const override {
    int64_t bytes = 0;
    forEachRegionInFile([&](const Region& region, int32_t /*group*/) { bytes += region.bytes(); });
    return bytes;
  }
  Allocations allocations() const override;

 private:
  struct Saved {
    int32_t slot;
    at::Tensor copy;
  };

  template <class Fn>
  static void quietly(Fn fn) {
    try {
      fn();
    } catch (const std::exception&) {  // the step that caused it has already thrown
    }
  }

  bool isMine(const exe::WorkerProgram& worker) const { return worker.process == options_.stage_process; }
  void makeStreams(const exe::WorkerProgram& worker, c10::Device device);
  // Gives the results to all processes.
  void shareStep() {
    if (!shared_.isNeeded()) return;
    shared_.shareResults(std::exchange(bound_outputs_, {}));
    options_.peers->begin();
  }
  at::Tensor hostValue(int32_t slot) const {
    const Type& type = executable_.slots[slot].type;
    at::Tensor result = at::empty_strided(type.sizes, type.strides, memory::scalarType(type.dtype));
    const Place& place = places_.ofSlot(slot);
    const c10::AutoGradMode no_grad(false);
    const c10::OptionalStreamGuard on_copies(place.copies());
    result.copy_(tensorOf(slot));
    place.wait();
    return result;
  }
  at::Tensor sharedValue(const exe::External& external, int32_t replica) const {
    return shared_.value(external.slotOf(replica), [this](int32_t slot) { return hostValue(slot); });
  }
  const at::Tensor& tensorOf(int32_t slot) const { return places_.ofSlot(slot).slots().tensor(slot, 0); }
  // Torch deals the streams of a pool in turn. While a graph of a stream's work is captured, no other user may have it.
  bool hasStreamAlone(int32_t worker) const {
    const std::optional<c10::Stream>& own = streams_[worker].own;
    int64_t users = std::ranges::count(places_, own, &Place::copies);
    forEachStream([&](const c10::Stream& stream) { users += stream == own; });
    return users == 1;
  }
  template <class Fn>
  void forEachStream(Fn fn) const {
    for (const WorkerStreams& streams : streams_) {
      for (const std::optional<c10::Stream>& stream : {streams.own, streams.source})
        if (stream) fn(*stream);
      for (const c10::Stream& stream : streams.others) fn(stream);
    }
    for (const std::unique_ptr<OffChipWindow>& window : windows_)
      if (window) {
        fn(window->incoming());
        fn(window->outgoing());
      }
  }
  template <class Fn>
  void forEachRegionInFile(Fn fn) const {
    for (std::size_t g = 0; g < executable_.groups.size(); ++g)
      if (const Region* region = places_.offChip().region(static_cast<int32_t>(g)); region && region->isInFile())
        fn(*region, static_cast<int32_t>(g));
  }
  void makeWindows();
  void releasePages() const;
  std::optional<UserError> waitForWorkers();
  at::Tensor counterOf(int32_t worker) const;
  void countLargeGradients();
  void fillInitial();
  void findRestored();

  const exe::Executable& executable_;
  const DeviceOptions options_;
  const std::vector<c10::Device> devices_;  // by memory space
  const c10::Device first_;                 // the first device that is not the host; it has the random stream
  Places places_;
  runtime::WrittenMemory written_;
  std::vector<kernels::Hyper> hypers_;
  std::vector<WorkerStreams> streams_;                     // by worker
  std::vector<WorkerMoves> moves_;                         // by worker
  std::vector<std::unique_ptr<OffChipWindow>> windows_;    // by worker; null: it uses no off-chip memory on a device
  std::vector<RandomPosition> random_;                     // by worker
  std::vector<Passage> passages_;                          // by worker
  std::vector<std::unique_ptr<PinnedMessages>> messages_;  // by worker; null: it does not work with other processes
  std::vector<std::unique_ptr<DirectMessages>> device_messages_;  // by worker; null: never from device to device
  std::vector<c10::MempoolId_t> graph_pools_;                     // by worker; {0, 0}: nothing was captured
  GradientCount gradients_;
  std::vector<at::Tensor> large_gradients_;  // by worker, for this step; undefined if it does not count
  StepEvents events_;
  StepProfile profile_;
  Staging staging_;
  StageShares shared_;                                  // with the processes that hold other stages
  Agreement agreement_;                                 // with the processes that hold other replicas
  StepAgreement step_agreement_;                        // with the processes that hold other stages
  std::vector<std::vector<at::Tensor>> bound_outputs_;  // bound in this step, if other processes get them
  RoundingPosition rounding_;
  at::Generator start_;          // start of the random numbers of the next step
  std::vector<Saved> restored_;  // values to restore if a step fails
};

void AcceleratorBackend::makeStreams(const exe::WorkerProgram& worker, c10::Device device) {
  WorkerStreams& streams = streams_.back();
  streams.own = newStream(device);
  if (!meetsOthers(executable_, worker)) {
    if (worker.from >= 0) streams.source = newStream(places_.at(worker.from).device());
    return;
  }
  std::vector<c10::Stream> all;
  if (streams.own) all.push_back(*streams.own);
  const auto isNew = [&](c10::Device other) {
    return !other.is_cpu() && std::ranges::none_of(all, [&](const c10::Stream& s) { return s.device() == other; });
  };
  if (exe::addsUp(worker))
    for (const c10::Device other : devices_)
      if (isNew(other)) all.push_back(streams.others.emplace_back(*newStream(other)));
  messages_.back() = std::make_unique<PinnedMessages>(all);
  // The other ends decide which of these links really do, so a link gets the memory in any case.
  if (streams.own && worker.isLink() && !exe::addsUp(worker) && collective::handover() == collective::Handover::kDevice)
    device_messages_.back() = std::make_unique<DirectMessages>(device);
}

void AcceleratorBackend::makeWindows() {
  std::vector<char> works_at_home;  // their worker is a link or on the host, so they use frames where these are at home
  for (const exe::WorkerProgram& worker : executable_.workers)
    works_at_home.push_back(worker.isLink() || places_.at(worker.space).isHost());
  moves_ = planMoves(executable_, works_at_home);
  for (std::size_t i = 0; i < moves_.size(); ++i) {
    windows_.emplace_back();
    if (moves_[i].window_bytes == 0 || !isMine(executable_.workers[i])) continue;
    const int32_t space = executable_.workers[i].space;
    windows_.back() = std::make_unique<OffChipWindow>(moves_[i], places_, space);
    places_.at(space).addTable(windows_.back()->slots());
  }
}

// Copies can bring pages of the file into memory even after a frame's release.
void AcceleratorBackend::releasePages() const {
  forEachRegionInFile([&](const Region& region, int32_t group) {
    for (int64_t frame = 0; frame < executable_.groups[group].frames; ++frame) region.release(frame);
  });
}

// Returns the error of a kernel that failed after the streams were last checked.
std::optional<UserError> AcceleratorBackend::waitForWorkers() {
  std::optional<UserError> first;
  forEachStream([&](const c10::Stream& stream) {
    try {
      stream.synchronize();
    } catch (const c10::Error& error) {
      if (!first)
        first.emplace(ErrorCode::E0601, Message{.what = error.what_without_backtrace(),
                                                .at = stream.device().str(),
                                                .remedy = "check the inputs of the step"});
    }
  });
  return first;
}

at::Tensor AcceleratorBackend::counterOf(int32_t worker) const {
  if (options_.gradient_edge <= 0 || executable_.workers[worker].isLink() || !isMine(executable_.workers[worker]))
    return {};
  const Place& place = places_.ofWorker(worker);
  return place.work([&] { return at::zeros({}, at::TensorOptions(at::kLong).device(place.device())); });
}

// Requires: the workers are done.
void AcceleratorBackend::countLargeGradients() {
  for (std::size_t i = 0; i < large_gradients_.size(); ++i)
    if (const at::Tensor& large = large_gradients_[i]; large.defined())
      gradients_.large += places_.ofWorker(static_cast<int32_t>(i)).work([&] { return large.item<int64_t>(); });
}

// Host memory is zero from the start, and so are off-chip groups, whose home it is.
void AcceleratorBackend::fillInitial() {
  for (std::size_t g = 0; g < executable_.groups.size(); ++g) {
    if (executable_.groups[g].kind != exe::GroupKind::kPersistent) continue;
    const Place& place = places_.ofGroup(static_cast<int32_t>(g));
    const Region* region = place.slots().region(static_cast<int32_t>(g));
    if (place.isHost() || !region || region->bytes() == 0) continue;
    place.work([&] {
      memory::tensorOver({region->frame(0), place.device()}, contiguousType(DType::kUInt8, {region->bytes()})).zero_();
    });
  }
  for (const exe::External& external : executable_.externals)
    if (external.slot >= 0 && (external.initial != 0 || std::signbit(external.initial)) &&
        (external.kind == exe::ExternalKind::kAccumulator || external.kind == exe::ExternalKind::kState))
      for (int32_t slot : slotsOf(external))
        if (places_.isHere(slot)) places_.ofSlot(slot).work([&] { tensorOf(slot).fill_(external.initial); });
}

// As on CPU devices, either all or none of a step's last updates run (StepEvents::requireNoError). So with one update a
// step there is nothing to restore.
void AcceleratorBackend::findRestored() {
  for (const exe::External& external : executable_.externals) {
    const bool updated = executable_.device_iterations > 1 &&
                         (external.kind == exe::ExternalKind::kParameter || external.kind == exe::ExternalKind::kState);
    if (external.slot < 0 || (external.kind != exe::ExternalKind::kBuffer && !updated)) continue;
    for (int32_t own : slotsOf(external))
      if (places_.isHere(own) && written_.overlaps(executable_.slots[own]))
        restored_.push_back({own, places_.ofSlot(own).work([&] { return tensorOf(own).clone(); })});
  }
}

// Memory that torch's allocator took from the devices and keeps, not the memory that it gave to tensors. Devices
// outside torch's tree may have an allocator that does not count.
Allocations AcceleratorBackend::allocations() const {
  Allocations all = Staging::pinnedAllocations();
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(first_.type()));
  for (int device = 0; allocator && device < at::accelerator::deviceCount(); ++device) {
    const auto stats = allocator->getDeviceStats(static_cast<c10::DeviceIndex>(device));
    all.count += stats.segment[kAll].allocated;
    all.bytes += stats.reserved_bytes[kAll].allocated;
  }
  return all;
}

}  // namespace

std::unique_ptr<DeviceBackend> makeAcceleratorBackend(const exe::Executable& executable, const DeviceOptions& options) {
  kernels::registerOperatorForms();
  checkOptions(options);
  checkSupported(executable, options);
  return std::make_unique<AcceleratorBackend>(executable, options);
}

}  // namespace abele::device

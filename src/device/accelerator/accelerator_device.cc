#include "device/accelerator/accelerator_device.h"

#include <algorithm>
#include <map>
#include <span>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "base/error.h"
#include "base/instructions.h"
#include "device/aten/counted_call.h"
#include "device/aten/own_call.h"
#include "device/processes/joint_call.h"
#include "device/processes/message_call.h"
#include "kernels/intra_op_threads.h"
#include "memory/steering_allocator.h"
#include "memory/tensors.h"

namespace abele::device {
namespace {

bool takesGenerator(const exe::Instruction& instruction) {
  return std::ranges::any_of(instruction.args, [](const Arg& arg) { return arg.kind == Arg::Kind::kGenerator; });
}

/// A copy between two memory spaces; if a stream makes it, the host continues at once. A copy of off-chip memory from
/// host memory to host memory passes through a device on the stream if both are pinned. Otherwise the host waits for
/// the stream and copies itself.
std::unique_ptr<Call> makeLinkCopy(const exe::Executable& executable, const exe::Instruction& instruction,
                                   const SlotTable& slots, const WorkerStreams& streams, Passage& passage) {
  const auto idOf = [&](size_t arg) { return static_cast<int32_t>(instruction.args.at(arg).i); };
  const auto isPinned = [&](size_t arg) {
    const at::Tensor& tensor = slots.tensor(idOf(arg), 0);
    return tensor.defined() && tensor.is_cpu() && tensor.is_pinned();
  };
  const bool is_off_chip = std::ranges::any_of(instruction.args, [&](const Arg& arg) {
    return arg.kind == Arg::Kind::kId && arg.i >= 0 &&
           executable.groups[executable.slots[static_cast<std::size_t>(arg.i)].group].off_chip;
  });
  std::optional<c10::Stream> stream;  // orders this copy with others; without one the host copies
  if (is_off_chip) stream = streams.own ? streams.own : streams.source;
  const bool passes_device = stream && isPinned(0) && isPinned(1);
  return callOf([to_slot = slots.ref(idOf(0)), from_slot = slots.ref(idOf(1)), &type = slots.typeOf(idOf(0)), stream,
                 passes_device, &passage](CallState& state) {
    const at::Tensor& to = to_slot.at(state.frame_of_group);
    const at::Tensor& from = from_slot.at(state.frame_of_group);
    if (passes_device) {
      const at::Tensor over = passage.tensor(type, stream->device());
      over.copy_(from, /*non_blocking=*/true);
      to.copy_(over, /*non_blocking=*/true);
      return;
    }
    if (stream && to.is_cpu() && from.is_cpu()) stream->synchronize();
    to.copy_(from, /*non_blocking=*/true);
  });
}

std::unique_ptr<Call> makeCall(const exe::Instruction& instruction, const SlotTable& slots,
                               std::vector<kernels::Hyper>& hypers, GradientCount& gradients) {
  if (isOwn(instruction.op)) return makeOwnCall(instruction, slots, hypers, gradients);
  std::unique_ptr<Call> call = makeOperatorCall(instruction, slots);
  const bool draws_by_itself = instruction.random_draws > 0 && !takesGenerator(instruction);
  return draws_by_itself ? makeDefaultGeneratorCall(std::move(call), instruction) : std::move(call);
}

/// For a worker: merges several updates into one call, which replaces the last of their instructions. The other
/// instructions do nothing.
class ListedUpdates {
 public:
  ListedUpdates(const exe::Executable& executable, const exe::WorkerProgram& worker) {
    for (const exe::Action& action : worker.actions) {
      const exe::Segment& segment = executable.segments[action.segment];
      if (segment.direction != exe::Direction::kUpdate) continue;
      std::span<const exe::Instruction> rest(segment.instructions);
      while (!rest.empty()) {
        const std::span<const exe::Instruction> together = updatesFrom(rest);
        if (together.size() > 1)
          for (const exe::Instruction& each : together) of_.emplace(&each, together);
        rest = rest.subspan(together.size());
      }
    }
  }
  /// The call of an instruction; null if it is not part of a merged call.
  std::unique_ptr<Call> makeCall(const exe::Instruction& instruction, const SlotTable& slots,
                                 std::vector<kernels::Hyper>& hypers) const {
    const auto found = of_.find(&instruction);
    if (found == of_.end()) return nullptr;
    if (&found->second.back() == &instruction) return makeUpdatesCall(found->second, slots, hypers);
    return callOf([](CallState&) {});
  }

 private:
  std::map<const exe::Instruction*, std::span<const exe::Instruction>> of_;
};

bool givesGradients(exe::Direction direction) {
  return direction == exe::Direction::kBackward || direction == exe::Direction::kWeightGrad;
}

void meet(c10::Event& event, const c10::Stream& first, const c10::Stream& then) {
  event.record(first);
  event.block(then);
}

}  // namespace

StepEvents::StepEvents(const exe::Executable& executable, int64_t stage_process, const Places& places,
                       c10::DeviceType type)
    : places_(places),
      is_here_(executable.segments.size(), false),
      completed_(executable.segments.size()),
      counts_(executable.segments.size(), 0) {
  for (size_t space = 0; space < places.size(); ++space) begun_.emplace_back(type);
  for (const exe::WorkerProgram& worker : executable.workers)
    for (const exe::Action& action : worker.actions) {
      if (worker.process != stage_process) continue;
      completed_[action.segment].emplace_back(type);
      is_here_[action.segment] = true;
    }
}

void StepEvents::begin() {
  std::ranges::fill(counts_, 0);
  checked_ = -1;
  error_ = nullptr;
}

void StepEvents::await(const exe::Wait& wait, const std::optional<c10::Stream>& stream) const {
  if (wait.completions <= 0 || !is_here_[wait.segment]) return;
  const c10::Event& event = completed_[wait.segment].at(wait.completions - 1);
  stream ? event.block(*stream) : event.synchronize();
}

void StepEvents::record(int32_t segment, const c10::Stream& stream) {
  completed_[segment].at(counts_[segment]++).record(stream);
}

void StepEvents::requireNoError(int32_t micro_batch, const std::optional<c10::Stream>& stream) {
  const std::lock_guard lock(mutex_);
  if (checked_ != micro_batch && !error_) {
    try {
      if (stream) stream->synchronize();
      // Waiting for one device does not report what a kernel of another one threw.
      for (const Place& place : places_) place.wait();
    } catch (...) {
      error_ = std::current_exception();
    }
    checked_ = micro_batch;
  }
  if (error_) std::rethrow_exception(error_);
}

at::Tensor Passage::tensor(const Type& type, c10::Device device) {
  if (bytes() < type.extentBytes())
    memory_ = at::empty({type.extentBytes()}, at::TensorOptions(at::kByte).device(device));
  return memory::tensorOver({memory_.mutable_data_ptr(), device}, type);
}

AcceleratorDevice::AcceleratorDevice(const exe::Executable& executable, int32_t worker, const WorkerParts& parts,
                                     std::vector<kernels::Hyper>& hypers, GradientCount& gradients, StepEvents& events,
                                     Staging& staging, const OtherProcesses& others, const DeviceOptions& options,
                                     const StepProfile& profile)
    : executable_(executable),
      program_(executable.workers[worker]),
      worker_(worker),
      process_(options.process),
      adds_up_(exe::addsUp(executable.workers[worker])),
      events_(events),
      staging_(staging),
      streams_(parts.streams),
      window_(parts.window),
      space_(executable.workers[worker].space),
      waits_for_messages_(parts.on_device != nullptr),
      host_threads_(!parts.slots.device().is_cpu()        ? 0
                    : executable.workers[worker].isLink() ? 1
                                                          : options.threads_per_device),
      actions_(executable.segments.size()),
      calls_(executable, worker, parts.slots, parts.random, profile, options.watch,
             [&, updates = ListedUpdates(executable, executable.workers[worker])](const exe::Instruction& instruction,
                                                                                  exe::Direction direction) {
               if (isMessage(instruction) || isJoint(instruction)) return makeProcessCall(instruction, parts, others);
               if (program_.isLink() && !adds_up_)
                 return makeLinkCopy(executable, instruction, parts.slots, streams_, parts.passage);
               if (!options.watch)  // a watcher sees the updates one by one
                 if (std::unique_ptr<Call> listed = updates.makeCall(instruction, parts.slots, hypers)) return listed;
               std::unique_ptr<Call> call = makeCall(instruction, parts.slots, hypers, gradients);
               if (!parts.large_gradients.defined() || !givesGradients(direction)) return call;
               return makeCountedCall(std::move(call), instruction, parts.slots, options.gradient_edge, gradients,
                                      parts.large_gradients);
             }) {
  if (streams_.own && streams_.source)
    for (std::optional<c10::Event>& event : met_) event.emplace(parts.slots.device().type());
  for (const exe::Action& action : executable.workers[worker].actions) {
    auto& of_segment = actions_[action.segment];
    of_segment.resize(executable.micro_batches);
    of_segment[action.micro_batch] = &action;
  }
  // A watcher, or a count of gradients, needs each call separately; copies of links involve two devices.
  const bool sees_calls = options.watch || parts.large_gradients.defined();
  if (options.device_graphs && parts.graph_pool && !sees_calls && streams_.own && !program_.isLink() &&
      SegmentGraphs::isAvailable(parts.slots.device().type()))
    graphs_.emplace(executable, worker, process_, parts.slots, calls_, parts.random, *streams_.own, profile,
                    *parts.graph_pool);
}

std::unique_ptr<Call> AcceleratorDevice::makeProcessCall(const exe::Instruction& instruction, const WorkerParts& parts,
                                                         const OtherProcesses& others) const {
  ABELE_CHECK(parts.messages, instruction.op, " without other processes");
  if (isMessage(instruction))
    return makeMessageCall(instruction, parts.slots, *others.shares.ofReplica(), *parts.messages, parts.on_device);
  const bool is_first = &instruction == firstJoint(executable_, worker_);
  return makeJointCall(executable_, instruction, parts.slots, *others.shares.ofStages(),
                       is_first ? &others.agreement : nullptr, *parts.messages);
}

void AcceleratorDevice::attach() {
  if (host_threads_ > 0) kernels::setIntraOpThreads(host_threads_);
}
void AcceleratorDevice::detach() {
  if (host_threads_ > 0) memory::dropCache();
}

// A link that fills the host's memory waits on the other device's stream. A worker that adds up sums of several devices
// has a stream on each, so the host waits.
void AcceleratorDevice::awaitOthers(const exe::Action& action) {
  if (adds_up_) {
    for (const exe::Wait& wait : action.waits) events_.await(wait, std::nullopt);
    return;
  }
  const std::optional<c10::Stream>& stream = streams_.own ? streams_.own : streams_.source;
  if (streams_.own) events_.begun(space_).block(*streams_.own);
  staging_.bring(worker_, action, streams_.own);
  for (const exe::Wait& wait : action.waits) events_.await(wait, stream);
  if (executable_.segments[action.segment].direction == exe::Direction::kUpdate)
    events_.requireNoError(action.micro_batch, stream);
}

void AcceleratorDevice::run(const runtime::ActionContext& context) {
  // The thread may be the caller's, inside autocast or another mode.
  const c10::impl::ForceDispatchKeyGuard plain(c10::default_included_set, c10::default_excluded_set);
  const c10::InferenceMode no_autograd;
  const c10::AutoGradMode as_captured(executable_.training);
  std::optional<memory::CacheScope> cache;
  if (host_threads_ > 0) cache.emplace();
  const c10::MultiStreamGuard on_others(streams_.others);
  const c10::OptionalStreamGuard on_source(streams_.source), on_our_stream(streams_.own);
  const exe::Action& action = *actions_[context.segment][context.micro_batch];
  awaitOthers(action);
  if (!window_) {
    runCalls(context);
    if (const auto& stream = streams_.own ? streams_.own : streams_.source) events_.record(context.segment, *stream);
    // As with a message through the host, the counter must mean that the message has arrived, or has left. Without this
    // wait, work could be enqueued ahead of work that its message depends on, where the host alone orders two streams.
    if (waits_for_messages_) streams_.own->synchronize();
    return;
  }
  const auto index = static_cast<std::size_t>(&action - program_.actions.data());
  window_->before(index, *streams_.own);
  runCalls(context);
  events_.record(context.segment, window_->after(index, *streams_.own));
}

void AcceleratorDevice::runCalls(const runtime::ActionContext& context) {
  // Torch decides which of the two devices copies, so their streams meet before and after.
  if (met_[0]) meet(*met_[0], *streams_.own, *streams_.source);
  if (graphs_)
    graphs_->run(context);
  else
    calls_.run(context, process_, [](std::size_t, CallState&) {});
  for (const c10::Stream& other : streams_.others) other.synchronize();
  if (met_[1]) meet(*met_[1], *streams_.source, *streams_.own);
}

}  // namespace abele::device

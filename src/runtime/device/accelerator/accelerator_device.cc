#include "runtime/device/accelerator/accelerator_device.h"

#include <algorithm>

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "base/error.h"
#include "base/instructions.h"
#include "runtime/device/aten/counted_call.h"
#include "runtime/device/aten/own_call.h"
#include "runtime/kernels/intra_op_threads.h"
#include "runtime/memory/steering_allocator.h"

namespace abele::runtime {
namespace {

bool takesGenerator(const exe::Instruction& instruction) {
  return std::ranges::any_of(instruction.args, [](const Arg& arg) { return arg.kind == Arg::Kind::kGenerator; });
}

/// A copy between two memory spaces, which goes on by itself where a stream makes it. From one off-chip frame to
/// another the host copies, when the stream is as far.
class LinkCopy final : public Call {
 public:
  LinkCopy(const exe::Instruction& instruction, const SlotTable& slots, const std::optional<c10::Stream>& awaited)
      : to_(slots.ref(static_cast<int32_t>(instruction.args.at(0).i))),
        from_(slots.ref(static_cast<int32_t>(instruction.args.at(1).i))),
        awaited_(awaited) {}
  void run(CallState& state) override {
    const at::Tensor& to = to_.at(state.frame_of_group);
    const at::Tensor& from = from_.at(state.frame_of_group);
    if (awaited_ && to.is_cpu() && from.is_cpu()) awaited_->synchronize();
    to.copy_(from, /*non_blocking=*/true);
  }

 private:
  SlotRef to_, from_;
  std::optional<c10::Stream> awaited_;
};

std::unique_ptr<Call> makeLinkCopy(const exe::Executable& executable, const exe::Instruction& instruction,
                                   const SlotTable& slots, const WorkerStreams& streams) {
  const bool is_off_chip = std::ranges::any_of(instruction.args, [&](const Arg& arg) {
    return arg.kind == Arg::Kind::kId && arg.i >= 0 &&
           executable.groups[executable.slots[static_cast<std::size_t>(arg.i)].group].off_chip;
  });
  const std::optional<c10::Stream>& stream = streams.own ? streams.own : streams.source;
  return std::make_unique<LinkCopy>(instruction, slots, is_off_chip ? stream : std::nullopt);
}

std::unique_ptr<Call> makeCall(const exe::Instruction& instruction, const SlotTable& slots, std::vector<Hyper>& hypers,
                               GradientCount& gradients) {
  if (isOwn(instruction.op)) return makeOwnCall(instruction, slots, hypers, gradients);
  std::unique_ptr<Call> call = makeOperatorCall(instruction, slots);
  const bool draws_by_itself = instruction.random_draws > 0 && !takesGenerator(instruction);
  return draws_by_itself ? makeDefaultGeneratorCall(std::move(call), instruction) : std::move(call);
}

bool givesGradients(exe::Direction direction) {
  return direction == exe::Direction::kBackward || direction == exe::Direction::kWeightGrad;
}

void meet(c10::Event& event, const c10::Stream& first, const c10::Stream& then) {
  event.record(first);
  event.block(then);
}

}  // namespace

StepEvents::StepEvents(const exe::Executable& executable, const Places& places, c10::DeviceType type)
    : places_(places), completed_(executable.segments.size()), counts_(executable.segments.size(), 0) {
  for (size_t space = 0; space < places.size(); ++space) inputs_.emplace_back(type);
  for (const exe::WorkerProgram& worker : executable.workers)
    for (const exe::Action& action : worker.actions) completed_[action.segment].emplace_back(type);
}

void StepEvents::begin() {
  std::ranges::fill(counts_, 0);
  checked_ = -1;
  error_ = nullptr;
}

void StepEvents::await(const exe::Wait& wait, const std::optional<c10::Stream>& stream) const {
  if (wait.completions <= 0) return;
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
      // A wait on one device does not tell what a kernel of another one threw.
      for (const Place& place : places_) place.wait();
    } catch (...) {
      error_ = std::current_exception();
    }
    checked_ = micro_batch;
  }
  if (error_) std::rethrow_exception(error_);
}

AcceleratorDevice::AcceleratorDevice(const exe::Executable& executable, int32_t worker, const SlotTable& slots,
                                     OffChipWindow* window, std::vector<Hyper>& hypers, RandomPosition& random,
                                     GradientCount& gradients, StepEvents& events, const WorkerStreams& streams,
                                     const at::Tensor& large_gradients, const DeviceOptions& options,
                                     const StepProfile& profile)
    : executable_(executable),
      program_(executable.workers[worker]),
      events_(events),
      streams_(streams),
      window_(window),
      space_(executable.workers[worker].space),
      host_threads_(!slots.device().is_cpu()              ? 0
                    : executable.workers[worker].isLink() ? 1
                                                          : options.threads_per_device),
      actions_(executable.segments.size()),
      calls_(executable, worker, slots, random, profile, options.watch, /*joins=*/false,
             [&](const exe::Instruction& instruction, exe::Direction direction) {
               if (program_.isLink()) return makeLinkCopy(executable, instruction, slots, streams_);
               std::unique_ptr<Call> call = makeCall(instruction, slots, hypers, gradients);
               if (!large_gradients.defined() || !givesGradients(direction)) return call;
               return makeCountedCall(std::move(call), instruction, slots, options.gradient_edge, gradients,
                                      large_gradients);
             }) {
  if (streams_.own && streams_.source)
    for (std::optional<c10::Event>& event : met_) event.emplace(slots.device().type());
  for (const exe::Action& action : executable.workers[worker].actions) {
    auto& of_segment = actions_[action.segment];
    of_segment.resize(executable.micro_batches);
    of_segment[action.micro_batch] = &action;
  }
  // Who watches or counts gradients sees each call; copies of links lie on two devices.
  const bool sees_calls = options.watch || large_gradients.defined();
  if (options.device_graphs && !sees_calls && streams_.own && !streams_.source &&
      SegmentGraphs::isAvailable(slots.device().type()))
    graphs_.emplace(executable, worker, slots, calls_, random, *streams_.own, profile);
}

void AcceleratorDevice::attach() {
  if (host_threads_ > 0) setIntraOpThreads(host_threads_);
}

// A link that fills the host's memory waits on the other device's stream.
void AcceleratorDevice::awaitOthers(const exe::Action& action) {
  const std::optional<c10::Stream>& stream = streams_.own ? streams_.own : streams_.source;
  if (streams_.own) events_.inputs(space_).block(*streams_.own);
  for (const exe::Wait& wait : action.waits) events_.await(wait, stream);
  if (executable_.segments[action.segment].direction == exe::Direction::kUpdate)
    events_.requireNoError(action.micro_batch, stream);
}

void AcceleratorDevice::run(const ActionContext& context) {
  // The thread may be the caller's, inside autocast or a mode of its own.
  const c10::impl::ForceDispatchKeyGuard plain(c10::default_included_set, c10::default_excluded_set);
  const c10::InferenceMode no_autograd;
  const c10::AutoGradMode as_captured(executable_.training);
  std::optional<CacheScope> cache;
  if (host_threads_ > 0) cache.emplace();
  const c10::OptionalStreamGuard on_source(streams_.source), on_our_stream(streams_.own);
  const exe::Action& action = *actions_[context.segment][context.micro_batch];
  awaitOthers(action);
  if (!window_) {
    runCalls(context);
    if (const auto& stream = streams_.own ? streams_.own : streams_.source) events_.record(context.segment, *stream);
    return;
  }
  const auto index = static_cast<std::size_t>(&action - program_.actions.data());
  window_->before(index, *streams_.own);
  runCalls(context);
  events_.record(context.segment, window_->after(index, *streams_.own));
}

void AcceleratorDevice::runCalls(const ActionContext& context) {
  // Which of the two devices copies is torch's choice.
  if (met_[0]) meet(*met_[0], *streams_.own, *streams_.source);
  if (graphs_)
    graphs_->run(context);
  else
    calls_.run(context, /*process=*/0, [](std::size_t, CallState&) {});
  if (met_[1]) meet(*met_[1], *streams_.source, *streams_.own);
}

}  // namespace abele::runtime

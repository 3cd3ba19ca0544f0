#include "runtime/device/accelerator/accelerator_device.h"

#include <algorithm>

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "base/error.h"
#include "base/instructions.h"
#include "runtime/device/aten/own_call.h"
#include "runtime/device/aten/refusal.h"
#include "runtime/device/aten/watched_call.h"

namespace abele::runtime {
namespace {

bool takesGenerator(const exe::Instruction& instruction) {
  return std::ranges::any_of(instruction.args, [](const Arg& arg) { return arg.kind == Arg::Kind::kGenerator; });
}

std::unique_ptr<Call> makeCall(const exe::Instruction& instruction, const SlotTable& slots, std::vector<Hyper>& hypers,
                               GradientCount& gradients) {
  if (isOwn(instruction.op)) return makeOwnCall(instruction, slots, hypers, gradients);
  std::unique_ptr<Call> call = makeOperatorCall(instruction, slots);
  const bool draws_by_itself = instruction.random_draws > 0 && !takesGenerator(instruction);
  return draws_by_itself ? makeDefaultGeneratorCall(std::move(call), instruction, slots.device()) : std::move(call);
}

}  // namespace

StepEvents::StepEvents(const exe::Executable& executable, c10::DeviceType type)
    : inputs_(type), completed_(executable.segments.size()), counts_(executable.segments.size(), 0) {
  for (const exe::WorkerProgram& worker : executable.workers)
    for (const exe::Action& action : worker.actions) completed_[action.segment].emplace_back(type);
}

void StepEvents::begin() {
  std::ranges::fill(counts_, 0);
  checked_ = -1;
  error_ = nullptr;
}

void StepEvents::block(const exe::Wait& wait, const c10::Stream& stream) const {
  if (wait.completions > 0) completed_[wait.segment].at(wait.completions - 1).block(stream);
}

void StepEvents::record(int32_t segment, const c10::Stream& stream) {
  completed_[segment].at(counts_[segment]++).record(stream);
}

void StepEvents::requireNoError(int32_t micro_batch, const c10::Stream& stream) {
  const std::lock_guard lock(mutex_);
  if (checked_ != micro_batch && !error_) {
    try {
      stream.synchronize();
    } catch (...) {
      error_ = std::current_exception();
    }
    checked_ = micro_batch;
  }
  if (error_) std::rethrow_exception(error_);
}

AcceleratorDevice::AcceleratorDevice(const exe::Executable& executable, int32_t worker, const SlotTable& slots,
                                     std::vector<Hyper>& hypers, RandomPosition& random, GradientCount& gradients,
                                     StepEvents& events, const c10::Stream& stream, Watch* watch)
    : executable_(executable), events_(events), stream_(stream), segments_(executable.segments.size()) {
  const c10::InferenceMode no_autograd;
  for (std::size_t g = 0; g < executable.groups.size(); ++g) frames_.push_back(slots.framesOf(static_cast<int32_t>(g)));
  frame_of_group_.resize(frames_.size());
  state_.random = &random;
  for (const exe::Action& action : executable.workers[worker].actions) {
    auto& calls = segments_[action.segment];
    if (!calls.empty()) continue;
    for (const exe::Instruction& instruction : executable.segments[action.segment].instructions) {
      std::unique_ptr<Call> call = makeCall(instruction, slots, hypers, gradients);
      if (watch)
        call = makeWatchedCall(std::move(call), instruction, static_cast<int32_t>(calls.size()), slots, *watch);
      calls.push_back(std::move(call));
    }
  }
}

const exe::Action& AcceleratorDevice::actionOf(const ActionContext& context) const {
  const std::vector<exe::Action>& actions = executable_.workers[context.worker].actions;
  const auto found = std::ranges::find_if(actions, [&](const exe::Action& action) {
    return action.segment == context.segment && action.micro_batch == context.micro_batch;
  });
  ABELE_CHECK(found != actions.end(), "worker ", context.worker, " has no such action");
  return *found;
}

void AcceleratorDevice::run(const ActionContext& context) {
  // The thread may be the caller's, inside autocast or a mode of its own.
  const c10::impl::ForceDispatchKeyGuard plain(c10::default_included_set, c10::default_excluded_set);
  const c10::InferenceMode no_autograd;
  const c10::AutoGradMode as_captured(executable_.training);
  const c10::StreamGuard on_our_stream(stream_);
  events_.inputs().block(stream_);
  for (const exe::Wait& wait : actionOf(context).waits) events_.block(wait, stream_);
  if (executable_.segments[context.segment].direction == exe::Direction::kUpdate)
    events_.requireNoError(context.micro_batch, stream_);
  runCalls(context);
  events_.record(context.segment, stream_);
}

void AcceleratorDevice::runCalls(const ActionContext& context) {
  for (std::size_t g = 0; g < frames_.size(); ++g)
    frame_of_group_[g] = static_cast<int32_t>(context.micro_batch % frames_[g]);
  state_.frame_of_group = frame_of_group_.data();
  state_.action = context;
  state_.random_base =
      executable_.random_draws *
      executable_.globalMicroBatch(context.micro_batch, executable_.workers[context.worker].replica, /*process=*/0);
  const std::vector<std::unique_ptr<Call>>& calls = segments_[context.segment];
  std::size_t i = 0;
  try {
    for (; i < calls.size(); ++i) calls[i]->run(state_);
  } catch (const c10::Error& error) {
    refuseCall(executable_, executable_.segments[context.segment].instructions[i], error);
  }
  state_.stack.clear();
}

}  // namespace abele::runtime

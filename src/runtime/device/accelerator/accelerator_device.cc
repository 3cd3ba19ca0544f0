#include "runtime/device/accelerator/accelerator_device.h"

#include <algorithm>

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "base/error.h"
#include "base/instructions.h"
#include "runtime/device/aten/own_call.h"

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
    : executable_(executable),
      events_(events),
      stream_(stream),
      actions_(executable.segments.size()),
      calls_(executable, worker, slots, random, watch, [&](const exe::Instruction& instruction, exe::Direction) {
        return makeCall(instruction, slots, hypers, gradients);
      }) {
  for (const exe::Action& action : executable.workers[worker].actions) {
    auto& of_segment = actions_[action.segment];
    of_segment.resize(executable.micro_batches);
    of_segment[action.micro_batch] = &action;
  }
}

void AcceleratorDevice::run(const ActionContext& context) {
  // The thread may be the caller's, inside autocast or a mode of its own.
  const c10::impl::ForceDispatchKeyGuard plain(c10::default_included_set, c10::default_excluded_set);
  const c10::InferenceMode no_autograd;
  const c10::AutoGradMode as_captured(executable_.training);
  const c10::StreamGuard on_our_stream(stream_);
  events_.inputs().block(stream_);
  for (const exe::Wait& wait : actions_[context.segment][context.micro_batch]->waits) events_.block(wait, stream_);
  if (executable_.segments[context.segment].direction == exe::Direction::kUpdate)
    events_.requireNoError(context.micro_batch, stream_);
  calls_.run(context, /*process=*/0, [](std::size_t, CallState&) {});
  events_.record(context.segment, stream_);
}

}  // namespace abele::runtime

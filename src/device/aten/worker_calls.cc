#include "device/aten/worker_calls.h"

#include <utility>

#include <c10/core/InferenceMode.h>

#include "device/aten/watched_call.h"

namespace abele::device {

WorkerCalls::WorkerCalls(const exe::Executable& executable, int32_t worker, const SlotTable& slots,
                         RandomSource& random, const StepProfile& profile, Watch* watch, const Make& make)
    : executable_(executable),
      profile_(profile),
      segments_(executable.segments.size()),
      frame_of_group_(executable.groups.size()) {
  const c10::InferenceMode no_autograd;
  state_.random = &random;
  state_.frame_of_group = frame_of_group_.data();
  for (const exe::Action& action : executable.workers[worker].actions) {
    auto& calls = segments_[action.segment];
    if (calls.empty()) addCalls(executable.segments[action.segment], slots, watch, make, calls);
  }
}

void WorkerCalls::drawFrom(std::vector<OwnSource> own) {
  own_ = std::move(own);
  own_draws_.assign(own_.size(), {});
  state_.own = own_draws_.data();
}

void WorkerCalls::addCalls(const exe::Segment& segment, const SlotTable& slots, Watch* watch, const Make& make,
                           std::vector<std::unique_ptr<Call>>& calls) {
  for (std::size_t i = 0; i < segment.instructions.size(); ++i) {
    const exe::Instruction& instruction = segment.instructions[i];
    std::unique_ptr<Call> call = make(instruction, segment.direction);
    if (watch) call = makeWatchedCall(std::move(call), instruction, static_cast<int32_t>(i), slots, *watch);
    calls.push_back(std::move(call));
  }
}

void WorkerCalls::place(const runtime::ActionContext& context, int64_t process) {
  for (std::size_t g = 0; g < frame_of_group_.size(); ++g)
    frame_of_group_[g] = static_cast<int32_t>(executable_.frameOf(static_cast<int32_t>(g), context.micro_batch));
  state_.action = context;
  const int32_t replica = executable_.workers[context.worker].replica;
  const int64_t before = executable_.globalMicroBatch(context.micro_batch, replica, process);
  state_.random_base = executable_.random_draws * before;
  state_.normals_base = executable_.normals.count * before;
  for (std::size_t i = 0; i < own_.size(); ++i)
    own_draws_[i] = {own_[i].random, own_[i].draws * before, own_[i].normals * before};
}

void WorkerCalls::runObserved(Call& call, int32_t segment, std::size_t instruction) {
  at::RecordFunction record(at::RecordScope::FUNCTION);
  record.before(executable_.segments[segment].instructions[instruction].op);
  call.run(state_);
}

}  // namespace abele::device

#include "runtime/device/aten/worker_calls.h"

#include <utility>

#include <c10/core/InferenceMode.h>

#include "runtime/device/aten/watched_call.h"

namespace abele::runtime {

WorkerCalls::WorkerCalls(const exe::Executable& executable, int32_t worker, const SlotTable& slots,
                         RandomSource& random, const StepProfile& profile, Watch* watch, const Make& make)
    : executable_(executable), profile_(profile), segments_(executable.segments.size()) {
  const c10::InferenceMode no_autograd;
  for (std::size_t g = 0; g < executable.groups.size(); ++g) frames_.push_back(slots.framesOf(static_cast<int32_t>(g)));
  frame_of_group_.resize(frames_.size());
  state_.random = &random;
  for (const exe::Action& action : executable.workers[worker].actions) {
    auto& calls = segments_[action.segment];
    const exe::Segment& segment = executable.segments[action.segment];
    if (!calls.empty()) continue;
    for (const exe::Instruction& instruction : segment.instructions) {
      std::unique_ptr<Call> call = make(instruction, segment.direction);
      const auto index = static_cast<int32_t>(calls.size());
      if (watch) call = makeWatchedCall(std::move(call), instruction, index, slots, *watch);
      calls.push_back(std::move(call));
    }
  }
}

void WorkerCalls::place(const ActionContext& context, int64_t process) {
  for (std::size_t g = 0; g < frames_.size(); ++g)
    frame_of_group_[g] = static_cast<int32_t>(context.micro_batch % frames_[g]);
  state_.frame_of_group = frame_of_group_.data();
  state_.action = context;
  const int64_t before =
      executable_.globalMicroBatch(context.micro_batch, executable_.workers[context.worker].replica, process);
  state_.random_base = executable_.random_draws * before;
  state_.normals_base = executable_.normals.count * before;
}

void WorkerCalls::runObserved(Call& call, int32_t segment, std::size_t instruction) {
  at::RecordFunction record(at::RecordScope::FUNCTION);
  record.before(executable_.segments[segment].instructions[instruction].op);
  call.run(state_);
}

}  // namespace abele::runtime

#include "runtime/device/aten/worker_calls.h"

#include <optional>
#include <utility>

#include <c10/core/InferenceMode.h>

#include "runtime/device/aten/lanes_call.h"
#include "runtime/device/aten/watched_call.h"

namespace abele::runtime {

WorkerCalls::WorkerCalls(const exe::Executable& executable, int32_t worker, const SlotTable& slots,
                         RandomSource& random, const StepProfile& profile, Watch* watch, bool joins, const Make& make)
    : executable_(executable),
      profile_(profile),
      segments_(executable.segments.size()),
      frame_of_group_(static_cast<std::size_t>(executable.lanes), std::vector<int32_t>(executable.groups.size())),
      states_(static_cast<std::size_t>(executable.lanes)) {
  const c10::InferenceMode no_autograd;
  for (std::size_t lane = 0; lane < states_.size(); ++lane) {
    states_[lane].random = &random;
    states_[lane].lane = static_cast<int32_t>(lane);
    states_[lane].lanes = states_.data();
    states_[lane].frame_of_group = frame_of_group_[lane].data();
  }
  for (const exe::Action& action : executable.workers[worker].actions) {
    auto& calls = segments_[action.segment];
    if (calls.empty()) addCalls(executable.segments[action.segment], slots, watch, joins, make, calls);
  }
}

void WorkerCalls::drawFrom(std::vector<OwnSource> own) {
  own_ = std::move(own);
  own_draws_.assign(states_.size(), std::vector<OwnDraws>(own_.size()));
  for (std::size_t lane = 0; lane < states_.size(); ++lane) states_[lane].own = own_draws_[lane].data();
}

void WorkerCalls::addCalls(const exe::Segment& segment, const SlotTable& slots, Watch* watch, bool joins,
                           const Make& make, std::vector<PlacedCall>& calls) const {
  const auto makeOne = [make, direction = segment.direction](const exe::Instruction& instruction) {
    return make(instruction, direction);
  };
  for (std::size_t i = 0; i < segment.instructions.size(); ++i) {
    const exe::Instruction& instruction = segment.instructions[i];
    const std::optional<LaneGroup> group = laneGroupAt(segment, i, executable_.lanesOf(segment));
    std::unique_ptr<Call> of_lanes = joins && group ? makeLanesCall(*group, slots, makeOne) : nullptr;
    if (of_lanes) {
      if (watch) of_lanes = makeWatchedCall(std::move(of_lanes), instruction, static_cast<int32_t>(i), slots, *watch);
      calls.push_back({std::move(of_lanes)});
      for (std::size_t other = 1; other < group->size(); ++other) calls.emplace_back();
      i += group->size() - 1;
      continue;
    }
    if (instruction.joins > 0) {  // its parts run
      calls.emplace_back();
      continue;
    }
    std::unique_ptr<Call> call = makeOne(instruction);
    if (watch) call = makeWatchedCall(std::move(call), instruction, static_cast<int32_t>(i), slots, *watch);
    calls.push_back({std::move(call), static_cast<std::size_t>(instruction.lane)});
  }
}

void WorkerCalls::place(const ActionContext& context, int64_t process) {
  const int32_t replica = executable_.workers[context.worker].replica;
  for (CallState& state : states_) {
    const int32_t micro_batch = context.micro_batch + state.lane;
    std::vector<int32_t>& frames = frame_of_group_[static_cast<std::size_t>(state.lane)];
    for (std::size_t g = 0; g < frames.size(); ++g)
      frames[g] = static_cast<int32_t>(executable_.frameOf(static_cast<int32_t>(g), micro_batch));
    state.action = context;
    state.action.micro_batch = micro_batch;
    state.action.group_index += state.lane;
    const int64_t before = executable_.globalMicroBatch(micro_batch, replica, process);
    state.random_base = executable_.random_draws * before;
    state.normals_base = executable_.normals.count * before;
    for (std::size_t i = 0; i < own_.size(); ++i)
      own_draws_[static_cast<std::size_t>(state.lane)][i] = {own_[i].random, own_[i].draws * before,
                                                             own_[i].normals * before};
  }
}

void WorkerCalls::runObserved(const PlacedCall& placed, int32_t segment, std::size_t instruction) {
  placed.call->runObserved(states_[placed.lane], executable_.segments[segment].instructions[instruction].op);
}

}  // namespace abele::runtime

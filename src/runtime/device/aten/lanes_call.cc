#include "runtime/device/aten/lanes_call.h"

#include <utility>

#include "base/instructions.h"
#include "runtime/device/aten/lane_norm_call.h"
#include "runtime/device/aten/lane_sum_call.h"
#include "runtime/kernels/joined_rows.h"

namespace abele::runtime {
namespace {

class LanesCall final : public Call {
 public:
  LanesCall(const LaneGroup& group, ChooseCalls choose, MakePart make)
      : group_(group), choose_(std::move(choose)), make_(std::move(make)) {}

  void run(CallState& state) override {
    if (calls_.empty()) choose(state);
    for (const LaneCall& call : calls_) call.call->run(state.lanes[call.lane]);
  }
  void runObserved(CallState& state, const std::string& name) override {
    if (calls_.empty()) choose(state);
    for (const LaneCall& call : calls_) call.call->runObserved(state.lanes[call.lane], name);
  }

 private:
  void choose(const CallState& state) {
    std::vector<LaneCall> calls = choose_(state);
    if (calls.empty())
      for (int64_t lane = 0; lane < group_.lanes; ++lane) calls.push_back({make_(group_.part(lane)), lane});
    calls_ = std::move(calls);
  }

  LaneGroup group_;
  ChooseCalls choose_;
  MakePart make_;
  std::vector<LaneCall> calls_;  // none before the first run
};

ChooseCalls chooseRows(const LaneGroup& group, const SlotTable& slots, const MakePart& make) {
  if (!group.joint || !mayJoinRows(*group.joint)) return nullptr;
  return [group, &slots, make](const CallState&) {
    std::vector<LaneCall> calls;
    if (joinsRows({*group.joint, group.part(0), slots.slots(), group.lanes})) calls.push_back({make(*group.joint)});
    return calls;
  };
}

}  // namespace

std::optional<LaneGroup> laneGroupAt(const exe::Segment& segment, std::size_t instruction, int64_t lanes) {
  const std::vector<exe::Instruction>& all = segment.instructions;
  const exe::Instruction& first = all[instruction];
  if (first.joins > 0) return LaneGroup{&first, &first + 1, first.joins};
  if (lanes == 1 || !hasTrait(first.op, kSums) || all.size() - instruction < static_cast<std::size_t>(lanes))
    return std::nullopt;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const exe::Instruction& part = all[instruction + static_cast<std::size_t>(lane)];
    if (part.lane != lane || part.joins > 0 || part.op != first.op || part.writes != first.writes) return std::nullopt;
  }
  return LaneGroup{nullptr, &first, lanes};
}

std::unique_ptr<Call> makeLanesCall(const LaneGroup& group, const SlotTable& slots, MakePart make) {
  for (const LaneWay way : {chooseLaneSum, chooseLaneNorm, chooseRows})
    if (ChooseCalls choose = way(group, slots, make)) {
      // Calls check what they are made of: that of a damaged file is noticed while it is loaded, not at its first run.
      // Parts behind a joint instruction are alike (exe::verify).
      if (group.joint) static_cast<void>(make(*group.joint));
      for (int64_t lane = 0; lane < (group.joint ? 1 : group.lanes); ++lane) static_cast<void>(make(group.part(lane)));
      return std::make_unique<LanesCall>(group, std::move(choose), std::move(make));
    }
  return nullptr;
}

}  // namespace abele::runtime

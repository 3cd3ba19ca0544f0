#include "exe/build/fetches.h"

#include <map>

#include "exe/instruction_slots.h"

namespace abele::exe {
namespace {

using Frame = std::pair<int32_t, int32_t>;  // group, frame
using Needs = std::map<Frame, bool>;        // frame -> whether it is written

// Off-chip groups that a segment's instructions touch.
std::map<int32_t, bool> groupsOf(const Executable& exe, const Segment& segment) {
  std::map<int32_t, bool> groups;
  auto note = [&](int32_t slot, bool writes) {
    const int32_t group = exe.slots[slot].group;
    if (exe.groups[group].off_chip) groups[group] |= writes;
  };
  for (const Instruction& i : segment.instructions) {
    forEachOperand(i, [&](int32_t slot) { note(slot, /*writes=*/false); });
    forEachWritten(i, [&](int32_t slot) { note(slot, /*writes=*/true); });
  }
  return groups;
}

}  // namespace

void addFetches(Executable& exe) {
  std::vector<std::map<int32_t, bool>> groups_of;
  for (const Segment& segment : exe.segments) groups_of.push_back(groupsOf(exe, segment));
  for (WorkerProgram& worker : exe.workers) {
    std::vector<Needs> needs;
    for (const Action& action : worker.actions) {
      Needs& frames = needs.emplace_back();
      for (const auto& [group, writes] : groups_of[action.segment])
        frames[{group, static_cast<int32_t>(exe.frameOf(group, action.micro_batch))}] = writes;
    }
    const Needs nothing;
    for (size_t i = 0; i < needs.size(); ++i) {
      const Needs& before = i == 0 ? nothing : needs[i - 1];
      const Needs& next = needs[(i + 1) % needs.size()];
      for (const auto& [frame, writes] : needs[i]) {
        const FrameUse use{frame.first, frame.second, writes};
        const auto held = before.find(frame);
        const bool is_there = held != before.end() && (held->second || !writes);
        if (!is_there) worker.actions[i].fetches.push_back(use);
        if (next.count(frame) == 0) worker.actions[i].releases.push_back(use);
      }
    }
  }
}

}  // namespace abele::exe

// Checks an executable's moves to and from its devices, action by action.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/cat.h"
#include "exe/executable.h"

namespace abele::test {

/// All faults: off-chip memory that is used before it is fetched (or made writable), more memory held at once than
/// fetchedBytes says, releases of memory that is not held, and memory held for an action that does not need it.
inline std::vector<std::string> findMoveFaults(const exe::Executable& exe) {
  using Frame = std::pair<int32_t, int32_t>;
  std::vector<std::string> faults;
  for (size_t w = 0; w < exe.workers.size(); ++w) {
    const std::vector<exe::Action>& actions = exe.workers[w].actions;
    std::map<Frame, bool> held;
    auto bytes = [&](std::map<Frame, bool> frames, const std::vector<exe::FrameUse>& more) {
      for (const exe::FrameUse& use : more) frames[{use.group, use.frame}] = true;
      int64_t sum = 0;
      for (const auto& [frame, writes] : frames) sum += exe.groups[frame.first].frame_bytes;
      return sum;
    };
    for (size_t i = 0; i < actions.size(); ++i) {
      const std::string at = cat("worker ", w, " action ", i, ": ");
      for (const exe::FrameUse& use : actions[i].fetches) held[{use.group, use.frame}] |= use.writes;
      const bool ahead = exe.fetch_ahead;
      const std::vector<exe::FrameUse> none;
      if (bytes(held, ahead ? actions[(i + 1) % actions.size()].fetches : none) > exe::fetchedBytes(exe, w))
        faults.push_back(at + "holds more than it says");
      std::map<Frame, bool> used;
      auto touch = [&](int64_t slot, bool writes) {
        if (slot < 0 || !exe.groups[exe.slots[slot].group].off_chip) return;
        const int32_t group = exe.slots[slot].group;
        const Frame frame{group, actions[i].micro_batch % exe.groups[group].frames};
        used[frame] = true;
        auto it = held.find(frame);
        if (it == held.end() || (writes && !it->second))
          faults.push_back(at + cat("uses ", exe.groups[group].name, " unfetched"));
      };
      for (const exe::Instruction& instruction : exe.segments[actions[i].segment].instructions) {
        for (const Arg& arg : instruction.args) {
          if (arg.kind == Arg::Kind::kId) touch(arg.i, false);
          if (arg.kind == Arg::Kind::kIdList || arg.kind == Arg::Kind::kOptionalIdList)
            for (int64_t slot : arg.ints) touch(slot, false);
        }
        for (int32_t slot : instruction.writes) touch(slot, true);
        for (const auto& group : instruction.results)
          for (int32_t slot : group) touch(slot, true);
      }
      if (used.size() != held.size()) faults.push_back(at + cat("holds ", held.size(), ", uses ", used.size()));
      for (const exe::FrameUse& use : actions[i].releases)
        if (held.erase({use.group, use.frame}) == 0) faults.push_back(at + "releases what it does not hold");
    }
  }
  return faults;
}

}  // namespace abele::test

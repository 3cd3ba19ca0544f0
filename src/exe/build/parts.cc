#include "exe/build/parts.h"

#include <algorithm>
#include <iterator>

#include "exe/instruction_slots.h"

namespace abele::exe {
namespace {

// The bytes of groups that instructions touch, as ranges that do not overlap.
class TouchedBytes {
 public:
  TouchedBytes(const Executable& exe, const std::vector<Instruction>& instructions) {
    const auto note = [&](int32_t slot) {
      const Slot& s = exe.slots[slot];
      add(ends_[s.group], s.offset_bytes, s.offset_bytes + s.type.extentBytes());
    };
    for (const Instruction& i : instructions) {
      forEachOperand(i, note);
      forEachResult(i, note);
    }
  }

  bool contains(const MemoryUse& use) const {
    const auto found = ends_.find(use.group);
    if (found == ends_.end()) return false;
    const auto after = found->second.lower_bound(use.offset_bytes + use.bytes);
    return after != found->second.begin() && std::prev(after)->second > use.offset_bytes;
  }

 private:
  static void add(std::map<int64_t, int64_t>& ends, int64_t begin, int64_t end) {
    auto next = ends.upper_bound(begin);
    if (next != ends.begin() && std::prev(next)->second >= begin) --next;
    while (next != ends.end() && next->first <= end) {
      begin = std::min(begin, next->first);
      end = std::max(end, next->second);
      next = ends.erase(next);
    }
    ends[begin] = end;
  }

  std::map<int32_t, std::map<int64_t, int64_t>> ends_;  // by group, then by begin of a range
};

SegmentUses usesOf(const Executable& exe, const SegmentUses& whole, const std::vector<Instruction>& instructions) {
  const TouchedBytes touched(exe, instructions);
  SegmentUses uses = {.reads = {}, .writes = {}, .makers = whole.makers};
  const auto isTouched = [&](const MemoryUse& use) { return touched.contains(use); };
  std::ranges::copy_if(whole.reads, std::back_inserter(uses.reads), isTouched);
  std::ranges::copy_if(whole.writes, std::back_inserter(uses.writes), isTouched);
  return uses;
}

}  // namespace

PartsOf cutSegments(Executable& exe, std::vector<SegmentUses>& uses,
                    const std::function<std::vector<size_t>(const Segment&)>& cutsOf) {
  PartsOf parts_of;
  const size_t num_segments = exe.segments.size();
  for (size_t s = 0; s < num_segments; ++s) {
    const std::vector<size_t> cuts = cutsOf(exe.segments[s]);
    if (cuts.empty()) continue;
    std::vector<int32_t>& parts = parts_of[static_cast<int32_t>(s)];
    std::vector<Instruction> whole = std::move(exe.segments[s].instructions);
    const SegmentUses uses_of_whole = uses[s];
    size_t begin = 0;
    const auto take = [&](size_t end) {
      std::vector<Instruction> taken(std::make_move_iterator(whole.begin() + static_cast<std::ptrdiff_t>(begin)),
                                     std::make_move_iterator(whole.begin() + static_cast<std::ptrdiff_t>(end)));
      begin = end;
      return taken;
    };
    for (size_t k = 0; k < cuts.size(); ++k) {
      parts.push_back(static_cast<int32_t>(exe.segments.size()));
      Segment part = exe.segments[s];
      part.name += cat("/part", k);
      part.instructions = take(cuts[k]);
      uses.push_back(usesOf(exe, uses_of_whole, part.instructions));
      exe.segments.push_back(std::move(part));
    }
    exe.segments[s].instructions = take(whole.size());
    uses[s] = usesOf(exe, uses_of_whole, exe.segments[s].instructions);
    parts.push_back(static_cast<int32_t>(s));
  }
  if (parts_of.empty()) return parts_of;
  for (WorkerProgram& worker : exe.workers) {
    std::vector<Action> actions;
    for (const Action& action : worker.actions) {
      const auto parts = parts_of.find(action.segment);
      if (parts == parts_of.end())
        actions.push_back(action);
      else
        for (const int32_t part : parts->second) actions.push_back({part, action.micro_batch, {}});
    }
    worker.actions = std::move(actions);
  }
  return parts_of;
}

}  // namespace abele::exe

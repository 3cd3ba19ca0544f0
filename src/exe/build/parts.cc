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

template <class T>
std::vector<std::vector<T>> splitAt(std::vector<T> whole, const std::vector<size_t>& cuts) {
  std::vector<std::vector<T>> pieces;
  auto begin = std::make_move_iterator(whole.begin());
  for (const size_t cut : cuts) {
    const auto end = std::make_move_iterator(whole.begin() + static_cast<std::ptrdiff_t>(cut));
    pieces.emplace_back(begin, end);
    begin = end;
  }
  pieces.emplace_back(begin, std::make_move_iterator(whole.end()));
  return pieces;
}

}  // namespace

PartsOf cutSegments(Executable& exe, std::vector<SegmentUses>& uses, Origins* origins,
                    const std::function<std::vector<size_t>(const Segment&)>& cutsOf) {
  PartsOf parts_of;
  const size_t num_segments = exe.segments.size();
  for (size_t s = 0; s < num_segments; ++s) {
    const std::vector<size_t> cuts = cutsOf(exe.segments[s]);
    if (cuts.empty()) continue;
    auto instructions = splitAt(std::move(exe.segments[s].instructions), cuts);
    Origins origins_of;
    if (origins) origins_of = splitAt(std::move((*origins)[s]), cuts);
    const SegmentUses uses_of_whole = std::move(uses[s]);
    const Segment whole = exe.segments[s];
    for (size_t k = 0; k <= cuts.size(); ++k) {
      const size_t part = k == cuts.size() ? s : exe.segments.size();
      if (part != s) {
        exe.segments.push_back(whole);
        exe.segments[part].name += cat("/part", k);
        uses.emplace_back();
        if (origins) origins->emplace_back();
      }
      uses[part] = usesOf(exe, uses_of_whole, instructions[k]);
      exe.segments[part].instructions = std::move(instructions[k]);
      if (origins) (*origins)[part] = std::move(origins_of[k]);
      parts_of[static_cast<int32_t>(s)].push_back(static_cast<int32_t>(part));
    }
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

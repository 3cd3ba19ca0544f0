#include "exe/build/dependencies.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "exe/instruction_slots.h"
#include "exe/progress.h"

namespace abele::exe {
namespace {

// The use of a range of a frame by one segment.
struct FrameRange {
  int64_t begin = 0, end = 0;
  int32_t segment = -1;
  auto operator<=>(const FrameRange&) const = default;
};

// The use of a piece of persistent memory by one segment.
struct PersistentUse {
  int64_t first = -1;
  bool writes = false;
};

// The last run of a segment up to a micro-batch. Workers that share a segment run it in the order of micro-batches.
struct Run {
  int32_t worker = -1;      // -1: it has not run yet
  int64_t completions = 0;  // including this one
};

class WaitMaker {
 public:
  WaitMaker(Executable& exe, const std::vector<SegmentUses>& uses, bool splits_backward)
      : exe_(exe), uses_(uses), weight_gradients_follow_(!splits_backward) {}

  void run() {
    indexActions();
    indexMemory();
    for (size_t w = 0; w < exe_.workers.size(); ++w)
      for (Action& a : exe_.workers[w].actions) addTo(a, static_cast<int32_t>(w));
  }

 private:
  bool isUpdate(int32_t segment) const { return exe_.segments[segment].direction == Direction::kUpdate; }

  // --- tables --------------------------------------------------------------------------------------------------------
  void indexActions() {
    runs_.assign(exe_.segments.size(), std::vector<Run>(exe_.micro_batches));
    for (size_t w = 0; w < exe_.workers.size(); ++w)
      for (const Action& a : exe_.workers[w].actions) runs_[a.segment][a.micro_batch].worker = static_cast<int32_t>(w);
    for (std::vector<Run>& runs : runs_) {
      Run before;
      for (Run& run : runs) {
        if (run.worker >= 0) before = {run.worker, before.completions + 1};
        run = before;
      }
    }
  }

  void indexMemory() {
    frame_users_.resize(exe_.groups.size());
    ranges_used_.resize(exe_.groups.size());
    ranges_written_.resize(exe_.groups.size());
    for (size_t s = 0; s < uses_.size(); ++s) {
      const int32_t segment = static_cast<int32_t>(s);
      for (const MemoryUse& use : uses_[s].reads) noteUse(segment, use, /*writes=*/false);
      for (const MemoryUse& use : uses_[s].writes) noteUse(segment, use, /*writes=*/true);
    }
    for (const auto& [memory, users] : persistent_)
      for (const auto& [segment, use] : users)
        for (const auto& [other, other_use] : users)
          if (segment != other && (use.writes || other_use.writes)) noteConflict(segment, use, other, other_use);
    for (size_t g = 0; g < exe_.groups.size(); ++g) noteReuse(g);
  }

  // The parts of a divided stage use one frame. A segment may write what an earlier one of another worker has used.
  void noteReuse(size_t group) {
    const auto isForeign = [&](const FrameRange& range) {
      return runs_[range.segment].front().worker != exe_.groups[group].worker;
    };
    if (std::ranges::none_of(ranges_used_[group], isForeign)) return;
    for (auto* ranges : {&ranges_used_[group], &ranges_written_[group]}) {
      std::ranges::sort(*ranges);
      ranges->erase(std::unique(ranges->begin(), ranges->end()), ranges->end());
    }
    std::vector<FrameRange> foreign;
    std::ranges::copy_if(ranges_written_[group], std::back_inserter(foreign), isForeign);
    const auto note = [&](const FrameRange& used, const std::vector<FrameRange>& written_ranges) {
      for (const FrameRange& written : written_ranges)
        if (written.begin < used.end && used.begin < written.end && runsBefore(used.segment, written.segment))
          same_micro_batch_[written.segment].insert(used.segment);
    };
    for (const FrameRange& used : ranges_used_[group])
      isForeign(used) ? note(used, ranges_written_[group]) : note(used, foreign);
  }

  void noteUse(int32_t segment, const MemoryUse& memory, bool writes) {
    const GroupKind kind = exe_.groups[memory.group].kind;
    if (kind == GroupKind::kStash) frame_users_[memory.group].insert(segment);
    if (kind == GroupKind::kStash && writes) frames_written_[segment].insert(memory.group);
    if (kind == GroupKind::kStash && !isUpdate(segment)) {
      const FrameRange range{memory.offset_bytes, memory.offset_bytes + memory.bytes, segment};
      ranges_used_[memory.group].push_back(range);
      if (writes) ranges_written_[memory.group].push_back(range);
    }
    if (kind != GroupKind::kPersistent) return;
    PersistentUse& use = persistent_[{memory.group, memory.offset_bytes}][segment];
    if (use.first < 0 || memory.order < use.first) use.first = memory.order;
    use.writes |= writes;
  }

  // Called for every ordered pair of segments that use the same memory, if one of them writes.
  void noteConflict(int32_t segment, const PersistentUse& use, int32_t other, const PersistentUse& other_use) {
    if (isUpdate(segment) && isUpdate(other)) {
      (other_use.first < use.first ? same_micro_batch_ : updates_before_)[segment].insert(other);
    } else if (isUpdate(other)) {
      updates_before_[segment].insert(other);
    } else if (!isUpdate(segment)) {
      (runsBefore(other, segment) ? same_micro_batch_ : micro_batch_before_)[segment].insert(other);
    }  // an update waits for all of its group anyway, and sums over processes wait for their makers
  }

  bool runsBefore(int32_t first, int32_t second) const {
    const auto place = [&](const Segment& s) {
      const bool follows = s.direction == Direction::kWeightGrad && weight_gradients_follow_;
      return std::tuple(follows ? Direction::kBackward : s.direction,
                        s.direction == Direction::kForward ? s.stage : -s.stage, follows);
    };
    return place(exe_.segments[first]) < place(exe_.segments[second]);
  }

  // --- waits ---------------------------------------------------------------------------------------------------------
  void addTo(Action& a, int32_t worker) {
    std::map<int32_t, int64_t> wanted;
    auto want = [&](int32_t segment, int64_t micro_batch) {
      const Run run = micro_batch < 0 ? Run() : runs_[segment][micro_batch];
      if (run.worker == worker || run.worker < 0) return;
      // This process learns of another process's work only by messages. The other process has its own memory, and its
      // sender has waited for the work whose results a message carries.
      const bool is_here = exe_.workers[run.worker].process == exe_.workers[worker].process;
      if (is_here || uses_[a.segment].makers.contains(segment))
        wanted[segment] = std::max(wanted[segment], run.completions);
    };
    want(a.segment, a.micro_batch - 1);
    for (int32_t maker : uses_[a.segment].makers) want(maker, a.micro_batch);
    for (int32_t group : frames_written_[a.segment])
      for (int32_t user : frame_users_[group]) want(user, a.micro_batch - exe_.groups[group].frames);
    for (int32_t other : same_micro_batch_[a.segment]) want(other, a.micro_batch);
    for (int32_t other : micro_batch_before_[a.segment]) want(other, a.micro_batch - 1);
    if (isUpdate(a.segment) && !addsUp(exe_.workers[worker])) {
      for (size_t s = 0; s < exe_.segments.size(); ++s)
        if (!isUpdate(static_cast<int32_t>(s))) want(static_cast<int32_t>(s), a.micro_batch);
    }
    const int64_t last_of_group_before = a.micro_batch / exe_.accumulation * exe_.accumulation - 1;
    for (int32_t update : updates_before_[a.segment]) want(update, last_of_group_before);
    for (const auto& [segment, completions] : wanted) a.waits.push_back({segment, completions});
  }

  Executable& exe_;
  const std::vector<SegmentUses>& uses_;
  bool weight_gradients_follow_;                // they come directly after the backward of their stage
  std::vector<std::vector<Run>> runs_;          // by segment and micro-batch
  std::vector<std::set<int32_t>> frame_users_;  // by group
  std::vector<std::vector<FrameRange>> ranges_used_, ranges_written_;  // by group
  std::map<int32_t, std::set<int32_t>> frames_written_;                // segment -> stash groups
  std::map<std::pair<int32_t, int64_t>, std::map<int32_t, PersistentUse>> persistent_;
  // Segments that share persistent memory with the key. They must have run for the same micro-batch, for the one
  // before, or for the group before.
  std::map<int32_t, std::set<int32_t>> same_micro_batch_, micro_batch_before_, updates_before_;
};

// Drops waits that follow from the worker's own past or from another wait of the same action. A wait for a message of
// another process implies no work of this process, even if the message depends on it: a device gets its order to
// receive before the message is there.
void dropImpliedWaits(Executable& exe) {
  struct Place {
    size_t worker = 0;
    int32_t number = 0;  // how many of the worker's actions have then run
  };
  using Known = std::vector<int32_t>;  // actions that have run, by worker
  struct Completion {
    Place place;
    Known known;
    int32_t num_waiting = 0;  // actions that will still look at what is known
  };
  std::vector<std::vector<Completion>> completions(exe.segments.size());  // by segment
  const auto completionOf = [&](const Wait& wait) -> Completion& {
    return completions[wait.segment][static_cast<size_t>(wait.completions - 1)];
  };
  for (const WorkerProgram& worker : exe.workers)
    for (const Action& a : worker.actions) completions[a.segment].emplace_back();
  for (const WorkerProgram& worker : exe.workers)
    for (const Action& a : worker.actions)
      for (const Wait& wait : a.waits) ++completionOf(wait).num_waiting;
  std::vector<int32_t> process_of;  // by worker
  for (const WorkerProgram& worker : exe.workers) process_of.push_back(worker.process);
  // Whether a wait of one worker for a second one tells it what a third one has run.
  const auto grants = [&](size_t waiting, size_t awaited, size_t worker) {
    return process_of[awaited] == process_of[waiting] || process_of[worker] != process_of[waiting];
  };
  std::vector<Known> known(exe.workers.size(), Known(exe.workers.size(), 0));
  Known latest(exe.workers.size(), 0);  // by worker, what an action waits for
  std::vector<size_t> num_completions(exe.segments.size(), 0);
  const std::vector<size_t> ran = runOnCounters(exe, [&](size_t w, Action& a) {
    for (const Wait& wait : a.waits) {
      const Place place = completionOf(wait).place;
      latest[place.worker] = std::max(latest[place.worker], place.number);
    }
    std::vector<Wait> asked, kept;  // asked: the last one for each worker
    for (const Wait& wait : a.waits)
      if (const Place place = completionOf(wait).place; latest[place.worker] == place.number) asked.push_back(wait);
    for (const Wait& wait : asked) {
      const Place place = completionOf(wait).place;
      latest[place.worker] = 0;
      const bool implied = known[w][place.worker] >= place.number || std::ranges::any_of(asked, [&](const Wait& other) {
                             const Completion& seen = completionOf(other);
                             return other.segment != wait.segment && grants(w, seen.place.worker, place.worker) &&
                                    seen.known[place.worker] >= place.number;
                           });
      if (!implied) kept.push_back(wait);
    }
    for (const Wait& wait : kept) {
      const Completion& seen = completionOf(wait);
      for (size_t other = 0; other < exe.workers.size(); ++other)
        if (grants(w, seen.place.worker, other)) known[w][other] = std::max(known[w][other], seen.known[other]);
    }
    for (const Wait& wait : a.waits)
      if (Completion& seen = completionOf(wait); --seen.num_waiting == 0) seen.known = {};
    a.waits = std::move(kept);
    Completion& own = completions[a.segment][num_completions[a.segment]++];
    own.place = {w, ++known[w][w]};
    if (own.num_waiting > 0) own.known = known[w];
  });
  for (size_t w = 0; w < ran.size(); ++w)
    ABELE_CHECK(ran[w] == exe.workers[w].actions.size(), "worker ", w, " never runs action ", ran[w], " of its list");
}

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

void addWaits(Executable& executable, const std::vector<SegmentUses>& uses, bool splits_backward) {
  WaitMaker(executable, uses, splits_backward).run();
  dropImpliedWaits(executable);
}

// --- off-chip frames -------------------------------------------------------------------------------------------------

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

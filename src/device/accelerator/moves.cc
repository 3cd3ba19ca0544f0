#include "device/accelerator/moves.h"

#include <algorithm>
#include <map>
#include <utility>

#include "exe/instruction_slots.h"

namespace abele::device {
namespace {

using Ranges = std::vector<ByteRange>;

constexpr int64_t kAlignment = 64;  // the plan aligns frames of accelerators further (PlanOptions::alignment)

void sortAndJoin(Ranges& ranges) {
  std::ranges::sort(ranges, {}, &ByteRange::begin);
  Ranges joined;
  for (const ByteRange& range : ranges)
    if (!joined.empty() && range.begin <= joined.back().end)
      joined.back().end = std::max(joined.back().end, range.end);
    else
      joined.push_back(range);
  ranges = std::move(joined);
}

bool contains(const Ranges& all, const Ranges& some) {
  return std::ranges::all_of(some, [&](const ByteRange& range) {
    return std::ranges::any_of(all,
                               [&](const ByteRange& of) { return of.begin <= range.begin && range.end <= of.end; });
  });
}

/// The bytes of an off-chip group that the instructions of a segment touch.
struct Touched {
  Ranges all, written;
};

/// Bytes between two slots that no slot uses are copied along, so that there are fewer copies.
class GroupTouches {
 public:
  explicit GroupTouches(const exe::Executable& executable) : executable_(executable), slots_(executable.groups.size()) {
    for (const exe::Slot& slot : executable.slots)
      if (executable.groups[slot.group].off_chip)
        slots_[slot.group].push_back({slot.offset_bytes, slot.offset_bytes + slot.type.extentBytes()});
    for (Ranges& ranges : slots_) sortAndJoin(ranges);
  }

  std::map<int32_t, Touched> of(const exe::Segment& segment) const {
    std::map<int32_t, Touched> touches;
    const auto note = [&](int32_t id, bool writes) {
      const exe::Slot& slot = executable_.slots[id];
      if (!executable_.groups[slot.group].off_chip) return;
      Touched& touched = touches[slot.group];
      const ByteRange range{slot.offset_bytes, slot.offset_bytes + slot.type.extentBytes()};
      touched.all.push_back(range);
      if (writes) touched.written.push_back(range);
    };
    for (const exe::Instruction& instruction : segment.instructions) {
      exe::forEachOperand(instruction, [&](int32_t id) { note(id, /*writes=*/false); });
      exe::forEachWritten(instruction, [&](int32_t id) { note(id, /*writes=*/true); });
    }
    for (auto& [group, touched] : touches) {
      close(group, touched.all);
      close(group, touched.written);
    }
    return touches;
  }

 private:
  void close(int32_t group, Ranges& ranges) const {
    sortAndJoin(ranges);
    const Ranges& slots = slots_[group];
    Ranges closed;
    for (const ByteRange& range : ranges) {
      const auto inside = [&](const ByteRange& slot) {
        return slot.end > closed.back().end && slot.begin < range.begin;
      };
      if (!closed.empty() && std::ranges::none_of(slots, inside))
        closed.back().end = range.end;
      else
        closed.push_back(range);
    }
    ranges = std::move(closed);
  }

  const exe::Executable& executable_;
  std::vector<Ranges> slots_;  // by group: bytes that belong to slots
};

/// An action's use of a frame.
struct Use {
  int32_t worker = 0;
  int32_t action = 0;
  int32_t micro_batch = 0;
  const Touched* touched = nullptr;
  bool writes() const { return !touched->written.empty(); }
};

/// By worker: how many of its actions surely come before something, whatever the timing.
using Known = std::vector<int32_t>;

/// By worker and action: what surely comes before it.
std::vector<std::vector<Known>> orderOf(const exe::Executable& executable) {
  const std::size_t num_workers = executable.workers.size();
  std::vector<std::vector<Known>> before(num_workers), done(executable.segments.size());
  std::vector<Known> now(num_workers, Known(num_workers, 0));
  const auto isReady = [&](const exe::Action& action) {
    return std::ranges::all_of(action.waits, [&](const exe::Wait& wait) {
      return static_cast<int64_t>(done[wait.segment].size()) >= wait.completions;
    });
  };
  for (bool moved = true; std::exchange(moved, false);)
    for (std::size_t w = 0; w < num_workers; ++w) {
      const std::vector<exe::Action>& actions = executable.workers[w].actions;
      while (before[w].size() < actions.size() && isReady(actions[before[w].size()])) {
        const exe::Action& action = actions[before[w].size()];
        for (const exe::Wait& wait : action.waits) {
          if (wait.completions <= 0) continue;
          const Known& other = done[wait.segment][static_cast<std::size_t>(wait.completions) - 1];
          for (std::size_t v = 0; v < num_workers; ++v) now[w][v] = std::max(now[w][v], other[v]);
        }
        before[w].push_back(now[w]);
        ++now[w][w];
        done[action.segment].push_back(now[w]);
        moved = true;
      }
    }
  return before;
}

/// Places frames that are on the device at the same time without overlap: the largest first, each at the lowest offset.
class Window {
 public:
  /// Adds a frame that stays from time first to last. Returns its index.
  std::size_t add(int64_t bytes, int64_t first, int64_t last) {
    stays_.push_back({(bytes + kAlignment - 1) / kAlignment * kAlignment, first, last, 0});
    return stays_.size() - 1;
  }
  /// Returns the bytes of all frames.
  int64_t place() {
    std::vector<std::size_t> order(stays_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return stays_[a].bytes > stays_[b].bytes; });
    std::vector<std::size_t> placed;  // in the order of offsets
    int64_t bytes = 0;
    for (const std::size_t i : order) {
      Stay& stay = stays_[i];
      for (const std::size_t p : placed) {
        const Stay& other = stays_[p];
        if (other.last < stay.first || stay.last < other.first) continue;
        if (stay.offset_bytes + stay.bytes <= other.offset_bytes) break;
        stay.offset_bytes = std::max(stay.offset_bytes, other.offset_bytes + other.bytes);
      }
      const auto at = std::ranges::upper_bound(placed, stay.offset_bytes, {},
                                               [&](std::size_t p) { return stays_[p].offset_bytes; });
      placed.insert(at, i);
      bytes = std::max(bytes, stay.offset_bytes + stay.bytes);
    }
    return bytes;
  }
  int64_t offsetOf(std::size_t stay) const { return stays_[stay].offset_bytes; }

 private:
  struct Stay {
    int64_t bytes, first, last, offset_bytes;
  };
  std::vector<Stay> stays_;
};

/// The last action that stored each piece of memory.
class LastStores {
 public:
  void note(const ByteRange& range, int32_t action) {
    std::erase_if(stores_, [&](const Store& store) {
      // Stores run in order, so the later one covers the earlier.
      return range.begin <= store.range.begin && store.range.end <= range.end;
    });
    stores_.push_back({range, action});
  }
  int32_t of(const ByteRange& range) const {
    int32_t last = kNoStores;
    for (const Store& store : stores_)
      if (store.range.begin < range.end && range.begin < store.range.end) last = std::max(last, store.action);
    return last;
  }

 private:
  struct Store {
    ByteRange range;
    int32_t action;
  };
  std::vector<Store> stores_;
};

/// Finds the stores of the worker that fetches and actions must wait for.
class StoreOrder {
 public:
  explicit StoreOrder(const exe::Executable& executable) : executable_(executable) {}

  void note(std::vector<ActionMoves>& actions, const std::vector<char>& awaits_all) {
    int32_t last = kNoStores;
    for (std::size_t i = 0; i < actions.size(); ++i) {
      ActionMoves& action = actions[i];
      for (std::vector<Move>* const fetches : {&action.fetches, &action.next_fetches})
        for (Move& move : *fetches) move.behind = behind(move);
      for (const Move& move : action.placed)
        action.places_behind =
            std::max(action.places_behind,
                     places_.of({move.offset_bytes, move.offset_bytes + executable_.groups[move.group].frame_bytes}));
      if (awaits_all[i]) action.places_behind = last;
      for (const Move& move : action.stores) add(move, static_cast<int32_t>(i));
      if (!action.stores.empty()) last = static_cast<int32_t>(i);
    }
  }

 private:
  static ByteRange inWindow(const Move& move, const ByteRange& range) {
    return {move.offset_bytes + range.begin, move.offset_bytes + range.end};
  }
  int32_t behind(const Move& move) const {
    const auto home = homes_.find({move.group, move.frame});
    int32_t last = kNoStores;
    for (const ByteRange& range : move.ranges) {
      last = std::max(last, places_.of(inWindow(move, range)));
      if (home != homes_.end()) last = std::max(last, home->second.of(range));
    }
    return last;
  }
  void add(const Move& move, int32_t action) {
    for (const ByteRange& range : move.ranges) {
      places_.note(inWindow(move, range), action);
      homes_[{move.group, move.frame}].note(range, action);
    }
  }

  const exe::Executable& executable_;
  LastStores places_;
  std::map<std::pair<int32_t, int32_t>, LastStores> homes_;  // by group and frame
};

class MovePlanner {
 public:
  explicit MovePlanner(const exe::Executable& executable) : executable_(executable) {
    const GroupTouches touches(executable);
    for (const exe::Segment& segment : executable.segments) touched_.push_back(touches.of(segment));
    for (std::size_t w = 0; w < executable.workers.size(); ++w)
      for (std::size_t i = 0; i < executable.workers[w].actions.size(); ++i) {
        const exe::Action& action = executable.workers[w].actions[i];
        for (const auto& [group, touched] : touched_[action.segment])
          uses_[{group, static_cast<int32_t>(executable.frameOf(group, action.micro_batch))}].push_back(
              {static_cast<int32_t>(w), static_cast<int32_t>(i), action.micro_batch, &touched});
      }
    if (!uses_.empty()) before_ = orderOf(executable);
  }

  WorkerMoves plan(int32_t worker) {
    worker_ = worker;
    moves_ = {};
    moves_.actions.resize(executable_.workers[worker].actions.size());
    awaits_stores_.assign(moves_.actions.size(), false);
    window_ = {};
    pending_.clear();
    for (const auto& [frame, uses] : uses_) planFrame(frame, uses);
    moves_.window_bytes = window_.place();
    for (const Pending& pending : pending_) {
      Move move{pending.frame.first, pending.frame.second, window_.offsetOf(pending.stay), pending.ranges};
      (moves_.actions[pending.action].*pending.list).push_back(std::move(move));
    }
    StoreOrder(executable_).note(moves_.actions, awaits_stores_);
    return std::move(moves_);
  }

 private:
  using Frame = std::pair<int32_t, int32_t>;
  using List = std::vector<Move> ActionMoves::*;
  /// A move that has no offset in the window yet.
  struct Pending {
    std::size_t action;
    List list;
    Frame frame;
    std::size_t stay;
    Ranges ranges;
  };

  void planFrame(const Frame& frame, const std::vector<Use>& uses) {
    std::vector<Use> ours;
    for (const Use& use : uses)
      if (use.worker == worker_) ours.push_back(use);
    const bool is_shared = ours.size() != uses.size();
    for (std::size_t begin = 0, end = 0; begin < ours.size(); begin = end) {
      for (end = begin + 1; end < ours.size() && ours[end].action == ours[end - 1].action + 1;) ++end;
      const std::vector<Use> stay(ours.begin() + static_cast<std::ptrdiff_t>(begin),
                                  ours.begin() + static_cast<std::ptrdiff_t>(end));
      is_shared ? planShared(frame, stay, uses) : planOwn(frame, stay, uses);
    }
  }

  bool isAhead(const Use& use) const { return executable_.fetch_ahead && use.action > 0; }
  std::size_t addStay(const Frame& frame, const std::vector<Use>& uses, bool is_ahead) {
    const std::size_t stay = window_.add(executable_.groups[frame.first].frame_bytes,
                                         uses.front().action - (is_ahead ? 1 : 0), uses.back().action);
    pending_.push_back({at(uses.front()), &ActionMoves::placed, frame, stay, {}});
    if (is_ahead)
      moves_.actions[at(uses.front()) - 1].places_next = true;
    else
      awaits_stores_[at(uses.front())] = true;
    moves_.actions[at(uses.back())].leaves = true;
    return stay;
  }
  void fetch(const Frame& frame, const Use& use, std::size_t stay, Ranges ranges, bool is_ahead) {
    if (is_ahead)
      pending_.push_back({at(use) - 1, &ActionMoves::next_fetches, frame, stay, std::move(ranges)});
    else
      pending_.push_back({at(use), &ActionMoves::fetches, frame, stay, std::move(ranges)});
  }
  static std::size_t at(const Use& use) { return static_cast<std::size_t>(use.action); }

  void planOwn(const Frame& frame, const std::vector<Use>& stay, const std::vector<Use>& all) {
    Ranges touched, written;
    bool is_needed_later = false;
    for (const Use& use : stay) {
      touched.insert(touched.end(), use.touched->all.begin(), use.touched->all.end());
      written.insert(written.end(), use.touched->written.begin(), use.touched->written.end());
      if (use.writes() && isNeededBehind(frame, use, stay.back(), all)) is_needed_later = true;
    }
    sortAndJoin(touched);
    sortAndJoin(written);
    const bool comes = isNeededBefore(frame, stay.front(), all), is_ahead = isAhead(stay.front());
    const std::size_t place = addStay(frame, stay, is_ahead);
    if (comes) fetch(frame, stay.front(), place, std::move(touched), is_ahead);
    if (is_needed_later) pending_.push_back({at(stay.back()), &ActionMoves::stores, frame, place, std::move(written)});
  }

  void planShared(const Frame& frame, const std::vector<Use>& stay, const std::vector<Use>& all) {
    const auto isOld = [&](const Use& use) {
      return writesBefore(use, at(use), all) != writesBefore(use, at(use) - 1, all);
    };
    const bool comes = isNeededBefore(frame, stay.front(), all);
    const bool is_ahead = isAhead(stay.front()) && !(comes && isOld(stay.front()));
    const std::size_t place = addStay(frame, stay, is_ahead);
    Ranges there = stay.front().touched->all;
    bool is_stored = false;
    for (const Use& use : stay) {
      const bool is_first = &use == &stay.front();
      if (!is_first && isOld(use)) there.clear();
      if (is_first ? comes : !contains(there, use.touched->all)) {
        const bool ahead = is_first && is_ahead;
        fetch(frame, use, place, use.touched->all, ahead);
        if (ahead) moves_.actions[at(use) - 1].next_is_of_others = true;
        there.insert(there.end(), use.touched->all.begin(), use.touched->all.end());
        sortAndJoin(there);
      }
      if (use.writes() && is_stored) awaits_stores_[at(use)] = true;
      if (!use.writes() || !isNeededBehind(frame, use, use, all)) continue;
      is_stored = true;
      pending_.push_back({at(use), &ActionMoves::stores, frame, place, use.touched->written});
      moves_.actions[at(use)].stores_for_others = true;
    }
  }

  /// The number of actions of other workers that write the frame and surely come before an action of this worker.
  int64_t writesBefore(const Use& use, std::size_t action, const std::vector<Use>& all) const {
    const Known& known = before_[use.worker][action];
    return std::ranges::count_if(all, [&](const Use& other) {
      return other.worker != use.worker && other.writes() && other.action < known[other.worker];
    });
  }

  // A stash belongs to one micro-batch, so values of an earlier one are never read.
  bool isOfMicroBatch(const Frame& frame) const {
    return executable_.groups[frame.first].kind == exe::GroupKind::kStash;
  }
  bool isNeededBefore(const Frame& frame, const Use& use, const std::vector<Use>& all) const {
    if (!isOfMicroBatch(frame)) return true;
    const Known& known = before_[use.worker][at(use)];
    return std::ranges::any_of(all, [&](const Use& other) {
      return other.micro_batch == use.micro_batch && other.action < known[other.worker];
    });
  }
  // Whether an action needs what `use` wrote, after the worker's action `last` is over.
  bool isNeededBehind(const Frame& frame, const Use& use, const Use& last, const std::vector<Use>& all) const {
    if (!isOfMicroBatch(frame)) return true;
    return std::ranges::any_of(all, [&](const Use& other) {
      if (other.micro_batch != use.micro_batch) return false;
      if (other.worker == use.worker) return other.action > last.action;
      return other.action >= before_[use.worker][at(use)][other.worker];
    });
  }

  const exe::Executable& executable_;
  std::vector<std::map<int32_t, Touched>> touched_;  // by segment and off-chip group
  std::map<Frame, std::vector<Use>> uses_;           // in the order of workers and actions
  std::vector<std::vector<Known>> before_;
  int32_t worker_ = 0;
  WorkerMoves moves_;
  std::vector<char> awaits_stores_;  // by action: whether it waits for all earlier stores
  Window window_;
  std::vector<Pending> pending_;
};

}  // namespace

std::vector<WorkerMoves> planMoves(const exe::Executable& executable, const std::vector<char>& works_at_home) {
  MovePlanner planner(executable);
  std::vector<WorkerMoves> moves(executable.workers.size());
  for (std::size_t w = 0; w < moves.size(); ++w)
    if (!works_at_home[w]) moves[w] = planner.plan(static_cast<int32_t>(w));
  return moves;
}

}  // namespace abele::device

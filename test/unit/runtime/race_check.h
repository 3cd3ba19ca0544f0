// Checks that worker programs and waits order all uses of the same bytes, for any timing. Vector clocks over the tables
// decide it, so a missing wait is found even if it never does harm in a run.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "exe/executable.h"

namespace abele::test {

class RaceCheck {
 public:
  explicit RaceCheck(const exe::Executable& exe) : exe_(exe), done_(exe.segments.size()) {}

  std::vector<std::string> run() {
    std::vector<size_t> head(exe_.workers.size(), 0);
    std::vector<Clock> clocks(exe_.workers.size(), Clock(exe_.workers.size(), 0));
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t w = 0; w < head.size(); ++w)
        while (head[w] < exe_.workers[w].actions.size() && isReady(exe_.workers[w].actions[head[w]])) {
          runAction(exe_.workers[w].actions[head[w]], w, head[w], clocks[w]);
          ++head[w];
          moved = true;
        }
    }
    for (size_t w = 0; w < head.size(); ++w)
      if (head[w] < exe_.workers[w].actions.size())
        findings_.push_back(cat("worker ", w, " stops at action ", head[w]));
    return findings_;
  }

 private:
  using Clock = std::vector<size_t>;  // by worker: actions known to be done
  struct Access {
    int64_t begin, end;
    bool writes;
    size_t worker, index;
    int32_t slot;
  };

  bool isReady(const exe::Action& a) const {
    return std::all_of(a.waits.begin(), a.waits.end(), [&](const exe::Wait& wait) {
      return static_cast<int64_t>(done_[wait.segment].size()) >= wait.completions;
    });
  }

  void runAction(const exe::Action& a, size_t worker, size_t index, Clock& clock) {
    for (const exe::Wait& wait : a.waits)
      if (wait.completions > 0) {
        const Clock& other = done_[wait.segment][wait.completions - 1];
        for (size_t w = 0; w < clock.size(); ++w) clock[w] = std::max(clock[w], other[w]);
      }
    for (const exe::Instruction& i : exe_.segments[a.segment].instructions) {
      for (const Arg& arg : i.args) {
        if (arg.kind == Arg::Kind::kId) use(arg.i, false, a, worker, index, clock);
        if (arg.kind == Arg::Kind::kIdList)
          for (int64_t slot : arg.ints) use(slot, false, a, worker, index, clock);
      }
      for (int32_t slot : i.writes) use(slot, true, a, worker, index, clock);
      for (const auto& group : i.results)
        for (int32_t slot : group) use(slot, true, a, worker, index, clock);
    }
    // Waits count completions, so workers that share a segment have to complete it in order.
    if (!done_[a.segment].empty()) {
      const Clock& before = done_[a.segment].back();
      for (size_t w = 0; w < clock.size(); ++w)
        if (clock[w] < before[w])
          findings_.push_back(cat("worker ", worker, " action ", index, " may run ", exe_.segments[a.segment].name,
                                  " before worker ", w, " action ", before[w] - 1));
    }
    clock[worker] = index + 1;
    done_[a.segment].push_back(clock);
  }

  void use(int64_t slot, bool writes, const exe::Action& a, size_t worker, size_t index, const Clock& clock) {
    if (slot < 0) return;
    const exe::Slot& s = exe_.slots[slot];
    const Access access{
        s.offset_bytes, s.offset_bytes + s.type.extentBytes(), writes, worker, index, static_cast<int32_t>(slot)};
    auto& accesses = accesses_[{s.group, static_cast<int32_t>(exe_.frameOf(s.group, a.micro_batch))}];
    for (const Access& old : accesses) {
      const bool conflict = (old.writes || writes) && old.begin < access.end && access.begin < old.end;
      if (conflict && old.worker != worker && clock[old.worker] <= old.index)
        findings_.push_back(cat("worker ", worker, " action ", index, " and worker ", old.worker, " action ", old.index,
                                " use ", exe_.groups[s.group].name, " at once: $", slot, " and $", old.slot));
    }
    accesses.push_back(access);
  }

  const exe::Executable& exe_;
  std::vector<std::vector<Clock>> done_;  // by segment and completion: the clock after it
  std::map<std::pair<int32_t, int32_t>, std::vector<Access>> accesses_;  // by group and frame
  std::vector<std::string> findings_;
};

inline std::vector<std::string> findRaces(const exe::Executable& exe) { return RaceCheck(exe).run(); }

}  // namespace abele::test

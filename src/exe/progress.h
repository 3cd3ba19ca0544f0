// Private to exe/: runs the lists of actions without devices, only with their counters.
#pragma once

#include <algorithm>
#include <vector>

#include "exe/executable.h"

namespace abele::exe {

/// Calls fn(worker, action) for each action as soon as its waits hold. If a worker has to wait, tries it again when the
/// counter that it waits for changes. Returns: by worker, the number of actions that ran. Requires: all ids are valid.
template <class AnyExecutable, class Fn>
std::vector<size_t> runOnCounters(AnyExecutable& exe, Fn&& fn) {
  std::vector<int64_t> done(exe.segments.size(), 0);
  std::vector<size_t> ran(exe.workers.size(), 0);
  std::vector<std::vector<size_t>> sleepers(exe.segments.size());  // workers that wait, by the segment that they wait
                                                                   // for
  std::vector<size_t> awake;
  for (size_t w = exe.workers.size(); w-- > 0;) awake.push_back(w);
  while (!awake.empty()) {
    const size_t w = awake.back();
    awake.pop_back();
    for (; ran[w] < exe.workers[w].actions.size(); ++ran[w]) {
      auto& action = exe.workers[w].actions[ran[w]];
      const auto unmet =
          std::ranges::find_if(action.waits, [&](const Wait& wait) { return done[wait.segment] < wait.completions; });
      if (unmet != action.waits.end()) {
        sleepers[unmet->segment].push_back(w);
        break;
      }
      fn(w, action);
      ++done[action.segment];
      std::vector<size_t>& woken = sleepers[action.segment];
      awake.insert(awake.end(), woken.begin(), woken.end());
      woken.clear();
    }
  }
  return ran;
}

}  // namespace abele::exe

// For schedule/ and plan/: the number of frames that the stash of a stage needs.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace abele::schedule {

/// Lengths of rings under one schedule. A ring has as many frames as are in use at the same time if every action takes
/// one slot; without users it has length 1. Since this run needs no more frames, waits for free frames cannot cause a
/// deadlock.
class RingLengths {
 public:
  RingLengths(const Schedule& schedule, int num_stages, int64_t accumulation);
  /// users: the tasks that use a frame, a list or set of Task.
  template <class Users>
  int64_t of(const Users& users) const {
    return lengthOf({users.begin(), users.end()});
  }

 private:
  int64_t lengthOf(const std::vector<Task>& users) const;

  // The slots in which the tasks of a stage run, by direction and micro-batch; -1: it never runs.
  using StageSlots = std::array<std::vector<int64_t>, 4>;
  std::vector<StageSlots> slots_;  // by stage
  size_t micro_batches_ = 0;
};

}  // namespace abele::schedule

// Private to plan/: how many frames the stash of a stage needs.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace abele::plan {

/// Lengths of rings under one schedule: as many frames as there are micro-batches whose frame is in use at once when
/// every action takes one slot; 1 for a ring without users. That run keeps to the rings, so the waits for free frames
/// cannot make a deadlock.
class RingLengths {
 public:
  RingLengths(const Schedule& schedule, int num_stages, int64_t accumulation);
  /// users: the tasks that touch a frame, a list or set of Task.
  template <class Users>
  int64_t of(const Users& users) const {
    return lengthOf({users.begin(), users.end()});
  }

 private:
  int64_t lengthOf(const std::vector<Task>& users) const;

  // Slots in which the tasks of a stage run, by direction and micro-batch; -1: not at all.
  using StageSlots = std::array<std::vector<int64_t>, 4>;
  std::vector<StageSlots> slots_;  // by stage
  size_t micro_batches_ = 0;
};

}  // namespace abele::plan

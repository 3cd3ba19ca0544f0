// Private to plan/: how many frames the stash of a stage needs.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace abele::plan {

/// By ring, as many frames as there are micro-batches whose frame is in use at once when every action takes one slot; 1
/// for a ring without users. That run keeps to the rings, so the waits for free frames cannot make a deadlock.
/// users: by ring, the tasks that touch a frame.
std::vector<int64_t> ringLengths(const Schedule& schedule, int num_stages, int64_t accumulation,
                                 const std::vector<std::vector<Task>>& users);

}  // namespace abele::plan

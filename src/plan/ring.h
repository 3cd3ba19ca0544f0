// Private to plan/: how many frames the stash of a stage needs.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace abele::plan {

/// By stage, a ring as long as the number of micro-batches whose frame is in use at once when every action takes one
/// slot; 1 for a stage without users. That run keeps to the ring, so the waits for free frames cannot make a deadlock.
/// users: by stage, the tasks that touch a frame.
std::vector<int64_t> ringLengths(const Schedule& schedule, int64_t accumulation,
                                 const std::vector<std::vector<Task>>& users);

}  // namespace abele::plan

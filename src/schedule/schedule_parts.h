// Private to schedule/: functions that the makers of schedules share.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace abele::schedule {

inline Action act(int stage, ir::Direction direction, int64_t micro_batch) {
  return {stage, direction, static_cast<int32_t>(micro_batch)};
}

/// Throws InternalError unless all counts are >= 1.
void checkCounts(const ScheduleRequest& request);

/// Orders the stages that share a worker by running all of them in unit time.
Schedule merge(const std::vector<std::vector<Action>>& stages, const std::vector<int>& worker_of, int64_t micro_batches,
               int64_t accumulation);

/// The schedule of one group, repeated for each device iteration. This loses nothing, because the updates between
/// groups are a barrier anyway.
Schedule repeatGroup(const Schedule& group, int64_t device_iterations);

}  // namespace abele::schedule

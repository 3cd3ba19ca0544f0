// Private to schedule/: common functions for making schedules.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "schedule/schedule.h"

namespace abele::schedule {

inline Action act(int stage, ir::Direction direction, int64_t micro_batch) {
  return {stage, direction, static_cast<int32_t>(micro_batch)};
}

/// Throws InternalError unless all counts are >= 1.
void checkCounts(const ScheduleRequest& request);

/// The order of a single stage: `ahead` forwards, then forwards and backwards alternately, then the remaining
/// backwards. late: the number of backwards after which weight gradients run; nothing: they are part of backward.
std::vector<Action> stageOrder(int stage, int64_t ahead, int64_t micro_batches, std::optional<int64_t> late = {});

/// Orders the stages that share a worker by running all of them in unit time.
Schedule merge(const std::vector<std::vector<Action>>& stages, const std::vector<int>& worker_of, int64_t micro_batches,
               int64_t accumulation);

/// The schedule of one group, repeated for each device iteration. This takes no extra time, because no group can begin
/// before the update of the previous one.
Schedule repeatGroup(const Schedule& group, int64_t device_iterations);

}  // namespace abele::schedule

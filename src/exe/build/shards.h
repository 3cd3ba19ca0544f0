// Private to exe/build: decides which replica holds and updates each piece of the memory that replicas share.
#pragma once

#include <vector>

#include "exe/build/build.h"

namespace abele::exe {

/// By external and replica. Replicas of one group (ParameterGroups) share a value, so they have the same entries.
struct Shards {
  /// The replica whose memory holds the value that this replica uses.
  std::vector<std::vector<int32_t>> holder;
  /// For parameters: the replica that runs the update for this replica's group.
  std::vector<std::vector<int32_t>> updater;
};

/// Deals the parameters that `rules` ask for to the replicas of their group: whole tensors, the largest first. Each
/// goes to the replica that holds the least for the same worker, together with all that belongs to it. Other externals
/// stay where `owner` has them. The largest and the smallest share of a worker's replicas differ by at most one
/// parameter with its state. The exception is a first replica that tensors too small to be dealt fill more than that.
/// owner: by external and replica, the first of the replicas that share the value.
Shards chooseShards(const Executable& one_replica, const std::vector<std::vector<int32_t>>& owner,
                    const ShardingRules& rules);

}  // namespace abele::exe

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

/// Assigns the parameters that `rules` select to the replicas of their group: whole tensors, the largest first. Each
/// parameter, with its state and sum, goes to the replica with the fewest bytes for the same worker. Other externals
/// stay with their `owner`. The shares of a worker's replicas differ by at most one parameter with its state, unless
/// tensors that are too small to be assigned fill the first replica beyond that.
/// owner: by external and replica, the first of the replicas that share the value.
Shards chooseShards(const Executable& one_replica, const std::vector<std::vector<int32_t>>& owner,
                    const ShardingRules& rules);

}  // namespace abele::exe

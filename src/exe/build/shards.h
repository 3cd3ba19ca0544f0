// Private to exe/build: which replica holds and updates what of the memory that replicas share.
#pragma once

#include <vector>

#include "exe/build/build.h"

namespace abele::exe {

/// By external and replica. Replicas of one group (ParameterGroups) share a value: they have the same entries.
struct Shards {
  /// The replica whose memory holds the value that this replica uses.
  std::vector<std::vector<int32_t>> holder;
  /// Of parameters: the replica that runs the update for this replica's group.
  std::vector<std::vector<int32_t>> updater;
};

/// Deals the parameters that `rules` ask for to the replicas of their group, whole tensors, the largest first, each to
/// the replica that holds the least of the same worker's; what belongs to a parameter goes with it. All else stays
/// where `owner` has it. The largest and the smallest share of a worker's replicas differ by no more than one parameter
/// with its state, unless what is too small to be dealt fills the first replica more than that.
/// owner: by external and replica, the first replica of those that share the value.
Shards chooseShards(const Executable& one_replica, const std::vector<std::vector<int32_t>>& owner,
                    const ShardingRules& rules);

}  // namespace abele::exe

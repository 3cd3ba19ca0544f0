// Which replicas form a group, and what they share. Source: spec options.md section 10, executor.md sections 3 and 9.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace abele::compile {

/// kConsecutive: {0..k-1}, {k..2k-1}, ...; kOrthogonal: {0, m, 2m, ..}, {1, m+1, ..} for m groups; kNone: each replica
/// alone.
enum class CommGroup : uint8_t { kAll, kConsecutive, kOrthogonal, kNone };

/// The group of every replica. Groups are numbered in the order of their first replicas. Requires: size divides
/// replicas, unless the type ignores size.
std::vector<int32_t> groupsOf(CommGroup type, int64_t size, int64_t replicas);
/// The first replica of every replica's group.
std::vector<int32_t> firstOfGroups(const std::vector<int32_t>& group_of);

/// A parameter with its own value in each group of replicas. The host's tensor has an additional first dimension, with
/// a value for every group or for every replica.
struct ReplicaGrouping {
  std::string parameter;
  CommGroup type = CommGroup::kAll;
  int64_t shards = 0;            // number of replicas in a group
  bool one_per_replica = false;  // VariableRetrievalMode.AllReplicas
};

/// Returns true if groups of this size divide the replicas.
bool fits(const ReplicaGrouping& grouping, int64_t replicas);

}  // namespace abele::compile

#include "compile/replica_groups.h"

#include <algorithm>

namespace abele::compile {

std::vector<int32_t> groupsOf(CommGroup type, int64_t size, int64_t replicas) {
  std::vector<int32_t> group_of(static_cast<size_t>(replicas), 0);
  for (int64_t r = 0; r < replicas; ++r) switch (type) {
      case CommGroup::kAll: break;
      case CommGroup::kConsecutive: group_of[r] = static_cast<int32_t>(r / size); break;
      case CommGroup::kOrthogonal: group_of[r] = static_cast<int32_t>(r % (replicas / size)); break;
      case CommGroup::kNone: group_of[r] = static_cast<int32_t>(r); break;
    }
  return group_of;
}

std::vector<int32_t> firstOfGroups(const std::vector<int32_t>& group_of) {
  std::vector<int32_t> first_of;
  for (int32_t group : group_of)
    first_of.push_back(static_cast<int32_t>(std::find(group_of.begin(), group_of.end(), group) - group_of.begin()));
  return first_of;
}

bool fits(const ReplicaGrouping& grouping, int64_t replicas) {
  const bool counts = grouping.type == CommGroup::kConsecutive || grouping.type == CommGroup::kOrthogonal;
  return !counts || (grouping.shards >= 1 && replicas % grouping.shards == 0);
}

}  // namespace abele::compile

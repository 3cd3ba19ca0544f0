// Private to exe/build: from the executable of one replica to that of several. Knows nothing of schedules: it copies
// the finished tables of one replica, whatever made them.
#pragma once

#include <vector>

#include "exe/build/build.h"
#include "exe/build/dependencies.h"

namespace abele::exe {

/// Every replica gets workers, segments, stash, transient memory and gradient sums of its own, and buffers of its own
/// where its forward writes them; all else in persistent memory is shared. Gradient sums of the replicas that share a
/// parameter are added up in ascending order by segments that run before the updates; then one replica, the first of
/// those or the one that the parameter is dealt to (Replication::sharding), updates. Requires: no waits yet.
void replicate(Executable& executable, std::vector<SegmentUses>& uses, const Replication& rules);

/// Throws E0403 where a forward writes a parameter that several replicas share.
void checkSharedParameters(const ir::Graph& graph, const Replication& rules);

}  // namespace abele::exe

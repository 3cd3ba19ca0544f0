// Private to exe/build: turns the executable of one replica into one for several. It copies the finished tables of one
// replica and does not depend on the schedule.
#pragma once

#include <vector>

#include "exe/build/build.h"
#include "exe/build/dependencies.h"

namespace abele::exe {

/// Every replica gets its own workers, segments, stash, transient memory and gradient sums, and its own copy of buffers
/// that its forward writes. Replicas share all other persistent memory. Segments that run before the updates add up the
/// gradient sums of replicas that share a parameter, in ascending order. Then one replica runs the update: the first of
/// the group, or the one to which Shards assigns the parameter (Replication::sharding). Requires: no waits yet.
void replicate(Executable& executable, std::vector<SegmentUses>& uses, const Replication& rules);

}  // namespace abele::exe

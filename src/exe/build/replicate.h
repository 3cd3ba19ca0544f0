// Private to exe/build: turns the executable of one replica into one for several. Knows nothing of schedules: it copies
// the finished tables of one replica, whatever schedule made them.
#pragma once

#include <vector>

#include "exe/build/build.h"
#include "exe/build/dependencies.h"

namespace abele::exe {

/// Every replica gets its own workers, segments, stash, transient memory and gradient sums, and its own copy of buffers
/// that its forward writes. Replicas share all other persistent memory. Segments that run before the updates add up the
/// gradient sums of replicas that share a parameter, in ascending order. Then one replica runs the update: the first of
/// the group, or the one that the parameter is dealt to (Replication::sharding). Requires: no waits yet.
void replicate(Executable& executable, std::vector<SegmentUses>& uses, const Replication& rules);

}  // namespace abele::exe

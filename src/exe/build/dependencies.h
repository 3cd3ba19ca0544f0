// Private to exe/build: computes the waits of every action from the memory that segments read and write, and the
// off-chip frames that are fetched before each action and released after it.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "exe/executable.h"

namespace abele::exe {

/// A read or write of a value's memory; `order` grows along the program.
struct MemoryUse {
  int32_t group = -1;
  int64_t offset_bytes = 0;
  int64_t order = 0;
  int64_t bytes = 0;  // in a stash
};

/// The memory that one segment reads and writes.
struct SegmentUses {
  std::vector<MemoryUse> reads, writes;
  std::set<int32_t> makers;  // other segments that make values it reads
};

/// Adds the waits for data, for ring frames and for updates, except those that a worker's own order implies. Throws
/// InternalError if the result could not run. splits_backward: the schedule orders weight gradients by themselves.
void addWaits(Executable& executable, const std::vector<SegmentUses>& uses, bool splits_backward);

/// Fills Action::fetches and releases from the schedule. A worker holds the frames that its current action needs;
/// frames that the next action needs too stay. The step repeats, so the first action follows the last one. The first
/// action fetches all that it needs, because the device is empty in the first step.
void addFetches(Executable& executable);

}  // namespace abele::exe

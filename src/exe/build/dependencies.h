// Private to exe/build: turns "which segment touches which memory" into the waits of every action.
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
};

/// The memory that one segment touches.
struct SegmentUses {
  std::vector<MemoryUse> reads, writes;
  std::set<int32_t> makers;  // other segments that make values it reads
};

/// Adds the waits that data, ring frames and updates need, and drops those that a worker's own order implies. Throws
/// InternalError if the result could not run.
void addWaits(Executable& executable, const std::vector<SegmentUses>& uses);

}  // namespace abele::exe

// Private to exe/build: groups gradient sums by the time when they are complete. Processes add up the sums of a group
// together.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "exe/build/dependencies.h"

namespace abele::exe {

/// Sums that are complete at the same time.
struct Bucket {
  std::set<int32_t> makers;   // segments: the sums are complete once these have run for the last micro-batch of a group
  std::vector<int32_t> sums;  // externals
};

/// Cuts segments that complete many bytes of gradient sums into parts, which run one after the other on their worker,
/// so that processes add up the sums of one part while the next part runs. A part is named after its segment,
/// "bwd/0/part0"; the segment itself is the last part. Does nothing to programs with off-chip memory. Requires: no
/// waits yet.
void splitBackward(Executable& executable, std::vector<SegmentUses>& uses);

/// The buckets in the order in which the program completes them. Requires: externals with slots; of one replica.
std::vector<Bucket> bucketsOf(const Executable& executable, const std::vector<int32_t>& sums);

bool usesOffChipMemory(const Executable& executable);
/// Whether two slots have a byte in common.
bool overlap(const Executable& executable, int32_t slot, int32_t other);

}  // namespace abele::exe

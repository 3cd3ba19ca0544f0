// Private to plan/: static offsets for things with a lifetime.
#pragma once

#include <cstdint>
#include <vector>

namespace abele::plan {

inline constexpr int64_t kAlignment = 64;  // as torch's own CPU allocator; kernels choose the same SIMD paths

/// Alive from begin to end, both included. Positions in any order that the caller can defend.
struct Interval {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t bytes = 0;
  int64_t offset_bytes = 0;  // result
};

int64_t alignUp(int64_t bytes);
/// Sets the offsets so that no two intervals alive together overlap; largest first, each at the lowest gap that fits.
/// Requires: begin <= end.
/// Returns: the bytes of the whole. Deterministic.
/// Cost: O(n log^2 n) while memory is dense at every time, as this order keeps it. steps: the ranges that were looked
/// at, for tests of that.
int64_t pack(std::vector<Interval>& intervals, int64_t* steps = nullptr);
/// Sets the offsets of those items that find a place below `limit` beside `fixed`, whose offsets stand, and beside each
/// other; largest first, each at the lowest gap that fits.
/// Returns: by item, whether it found one. Deterministic.
std::vector<bool> fillGaps(const std::vector<Interval>& fixed, int64_t limit, std::vector<Interval>& items);

}  // namespace abele::plan

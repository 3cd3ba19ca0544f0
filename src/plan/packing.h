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
/// Returns the bytes of the whole. Deterministic.
int64_t pack(std::vector<Interval>& intervals);

}  // namespace abele::plan

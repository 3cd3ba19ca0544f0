// Private to plan/: static offsets for items with a lifetime.
#pragma once

#include <cstdint>
#include <vector>

namespace abele::plan {

inline constexpr int64_t kAlignment = 64;  // as torch's own CPU allocator: kernels choose the same SIMD paths

/// An item that lives from begin to end, both included. The caller chooses the order of positions.
struct Interval {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t bytes = 0;
  int64_t offset_bytes = 0;  // set by pack()
};

int64_t alignUp(int64_t bytes);
/// Sets the offsets so that no two items overlap that live at the same time. Places the largest item first, and each
/// item in the lowest gap that fits.
/// Requires: begin <= end.
/// Returns: the bytes of the whole. Deterministic.
/// Cost: O(n log^2 n) if memory is dense at every time, which this order ensures. steps: the number of visited ranges;
/// tests of the cost read it.
int64_t pack(std::vector<Interval>& intervals, int64_t* steps = nullptr);
/// Sets the offsets of those items that find a place below `limit`, without overlapping `fixed` or each other. Places
/// the largest item first, and each item in the lowest gap that fits. The offsets of `fixed` stay.
/// Returns: by item, whether it found a place. Deterministic.
std::vector<bool> fillGaps(const std::vector<Interval>& fixed, int64_t limit, std::vector<Interval>& items);

}  // namespace abele::plan

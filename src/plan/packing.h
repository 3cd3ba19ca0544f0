// Private to plan/: static offsets for items with a lifetime.
#pragma once

#include <cstdint>
#include <vector>

namespace abele::plan {

inline constexpr int64_t kAlignment = 64;  // the alignment of torch's CPU allocator, so that kernels choose the same
                                           // SIMD paths

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
/// Returns: the total number of bytes. Deterministic.
/// Cost: O(n log^2 n), because this order leaves few gaps at any time. steps: the number of visited ranges, for tests
/// of the cost.
int64_t pack(std::vector<Interval>& intervals, int64_t* steps = nullptr);
/// Sets the offsets of those items for which there is a place below `limit` that overlaps neither `fixed` nor another
/// item. Places the largest item first, and each item in the lowest gap that fits. The offsets of `fixed` stay.
/// Returns: by item, whether it has a place. Deterministic.
std::vector<bool> fillGaps(const std::vector<Interval>& fixed, int64_t limit, std::vector<Interval>& items);

}  // namespace abele::plan

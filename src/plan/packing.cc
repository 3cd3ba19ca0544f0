#include "plan/packing.h"

#include <algorithm>
#include <numeric>

namespace abele::plan {

int64_t alignUp(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t pack(std::vector<Interval>& intervals) {
  std::vector<size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return intervals[a].bytes > intervals[b].bytes; });
  int64_t total = 0;
  std::vector<size_t> by_offset;  // placed ones
  for (size_t index : order) {
    Interval& item = intervals[index];
    const int64_t bytes = alignUp(item.bytes);
    int64_t offset = 0;
    for (size_t other : by_offset) {
      const Interval& placed = intervals[other];
      if (placed.begin > item.end || placed.end < item.begin) continue;
      if (placed.offset_bytes - offset >= bytes) break;
      offset = std::max(offset, placed.offset_bytes + alignUp(placed.bytes));
    }
    item.offset_bytes = offset;
    total = std::max(total, offset + bytes);
    auto where = std::upper_bound(by_offset.begin(), by_offset.end(), offset,
                                  [&](int64_t value, size_t i) { return value < intervals[i].offset_bytes; });
    by_offset.insert(where, index);
  }
  return total;
}

}  // namespace abele::plan

#include "plan/packing.h"

#include <algorithm>
#include <numeric>

namespace abele::plan {
namespace {

struct Range {
  int64_t begin, end;
};

// The taken ranges [begin, end), in order; they neither overlap nor touch. Packed memory is dense, so there are few
// ranges even for many items.
class TakenRanges {
 public:
  void add(int64_t begin, int64_t end) {
    const auto first = std::ranges::lower_bound(ranges_, begin, {}, &Range::end);
    auto last = first;
    for (; last != ranges_.end() && last->begin <= end; ++last) {
      begin = std::min(begin, last->begin);
      end = std::max(end, last->end);
    }
    if (first == last) {
      ranges_.insert(first, {begin, end});
      return;
    }
    *first = {begin, end};
    ranges_.erase(first + 1, last);
  }

  const std::vector<Range>& all() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

// The taken memory at any time: a segment tree over the times at which an item begins or ends.
class TakenOverTime {
 public:
  explicit TakenOverTime(const std::vector<Interval>& intervals) {
    for (const Interval& i : intervals) times_.insert(times_.end(), {i.begin, i.end});
    std::ranges::sort(times_);
    times_.erase(std::unique(times_.begin(), times_.end()), times_.end());
    nodes_.resize(4 * times_.size());
  }

  // The lowest offset that is free during the whole life of `item`. Visits the ranges of all relevant nodes in the
  // order of their beginnings, and skips those below the offset found so far.
  int64_t firstGap(const Interval& item, int64_t bytes) {
    met_.clear();
    find(0, 0, times_.size(), rankOf(item.begin), rankOf(item.end) + 1);
    const auto later = [](const Met& a, const Met& b) { return a.next->begin > b.next->begin; };
    std::make_heap(met_.begin(), met_.end(), later);
    int64_t offset = 0;
    while (!met_.empty() && met_.front().next->begin < offset + bytes) {
      std::pop_heap(met_.begin(), met_.end(), later);
      Met& met = met_.back();
      offset = std::max(offset, met.next->end);
      met.next = std::upper_bound(met.next + 1, met.end, offset, [](int64_t at, const Range& r) { return at < r.end; });
      if (met.next == met.end)
        met_.pop_back();
      else
        std::push_heap(met_.begin(), met_.end(), later);
      ++steps_;
    }
    return offset;
  }

  void add(const Interval& item, int64_t bytes) {
    if (bytes > 0) add(0, 0, times_.size(), rankOf(item.begin), rankOf(item.end) + 1, item.offset_bytes, bytes);
  }

  int64_t steps() const { return steps_; }

 private:
  // The rest of one node's ranges: the first one that may matter, and the end.
  struct Met {
    const Range* next;
    const Range* end;
  };
  struct Node {
    TakenRanges throughout;  // items that live during the whole span of this node, but not of its parent
    TakenRanges anywhere;    // items that live at some time in the span, except those in a parent's `throughout`
  };

  size_t rankOf(int64_t time) const {
    return static_cast<size_t>(std::ranges::lower_bound(times_, time) - times_.begin());
  }

  void meet(const TakenRanges& taken) {
    const std::vector<Range>& ranges = taken.all();
    if (!ranges.empty()) met_.push_back({ranges.data(), ranges.data() + ranges.size()});
  }

  // Visits the nodes for [begin, end). Node `node` spans the ranks [low, high).
  void find(size_t node, size_t low, size_t high, size_t begin, size_t end) {
    if (end <= low || high <= begin) return;
    if (begin <= low && high <= end) {
      meet(nodes_[node].anywhere);
      return;
    }
    meet(nodes_[node].throughout);
    const size_t middle = low + (high - low) / 2;
    find(2 * node + 1, low, middle, begin, end);
    find(2 * node + 2, middle, high, begin, end);
  }

  void add(size_t node, size_t low, size_t high, size_t begin, size_t end, int64_t offset, int64_t bytes) {
    if (end <= low || high <= begin) return;
    nodes_[node].anywhere.add(offset, offset + bytes);
    if (begin <= low && high <= end) {
      nodes_[node].throughout.add(offset, offset + bytes);
      return;
    }
    const size_t middle = low + (high - low) / 2;
    add(2 * node + 1, low, middle, begin, end, offset, bytes);
    add(2 * node + 2, middle, high, begin, end, offset, bytes);
  }

  std::vector<int64_t> times_;
  std::vector<Node> nodes_;
  std::vector<Met> met_;  // ranges that the current search still has to visit, as a heap
  int64_t steps_ = 0;
};

std::vector<size_t> largestFirst(const std::vector<Interval>& intervals) {
  std::vector<size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return intervals[a].bytes > intervals[b].bytes; });
  return order;
}

}  // namespace

int64_t alignUp(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t pack(std::vector<Interval>& intervals, int64_t* steps) {
  TakenOverTime taken(intervals);
  int64_t total = 0;
  for (size_t index : largestFirst(intervals)) {
    Interval& item = intervals[index];
    const int64_t bytes = alignUp(item.bytes);
    item.offset_bytes = taken.firstGap(item, bytes);
    taken.add(item, bytes);
    total = std::max(total, item.offset_bytes + bytes);
  }
  if (steps) *steps = taken.steps();
  return total;
}

std::vector<bool> fillGaps(const std::vector<Interval>& fixed, int64_t limit, std::vector<Interval>& items) {
  std::vector<Interval> all = fixed;
  all.insert(all.end(), items.begin(), items.end());
  TakenOverTime taken(all);
  for (const Interval& item : fixed) taken.add(item, alignUp(item.bytes));
  std::vector<bool> fits(items.size(), false);
  for (size_t index : largestFirst(items)) {
    Interval& item = items[index];
    const int64_t bytes = alignUp(item.bytes);
    const int64_t offset = taken.firstGap(item, bytes);
    if (offset + bytes > limit) continue;
    item.offset_bytes = offset;
    taken.add(item, bytes);
    fits[index] = true;
  }
  return fits;
}

}  // namespace abele::plan

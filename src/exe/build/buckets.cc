#include "exe/build/buckets.h"

#include <algorithm>
#include <map>

#include "exe/build/parts.h"
#include "exe/instruction_slots.h"

namespace abele::exe {
namespace {

constexpr int64_t kBucketBytes = int64_t{4} << 20;   // adding up takes milliseconds, an action takes microseconds
constexpr int64_t kLeastBytes = int64_t{256} << 10;  // fewer bytes join the next bucket, which takes no longer

int64_t bytesOf(const Executable& exe, int32_t external) {
  return exe.slots[exe.externals[external].slot].type.extentBytes();
}

bool writes(const Executable& exe, const Instruction& instruction, int32_t slot) {
  bool touches = false;
  forEachWritten(instruction, [&](int32_t other) { touches |= overlap(exe, slot, other); });
  return touches;
}

bool isBackward(const Segment& segment) {
  return segment.direction == Direction::kBackward || segment.direction == Direction::kWeightGrad;
}

// Gradient sums by the instruction that writes them last in the segment.
std::map<size_t, std::vector<int32_t>> completedSums(const Executable& exe, const Segment& segment,
                                                     const std::vector<int32_t>& sums) {
  std::map<size_t, std::vector<int32_t>> completed;
  for (const int32_t e : sums)
    for (size_t i = segment.instructions.size(); i-- > 0;)
      if (writes(exe, segment.instructions[i], exe.externals[e].slot)) {
        completed[i].push_back(e);
        break;
      }
  return completed;
}

// The positions where a segment is cut.
std::vector<size_t> cutsOf(const Executable& exe, const Segment& segment, const std::vector<int32_t>& sums) {
  std::vector<size_t> cuts;
  int64_t bytes = 0;
  for (const auto& [instruction, completed] : completedSums(exe, segment, sums)) {
    for (const int32_t e : completed) bytes += bytesOf(exe, e);
    if (bytes < kBucketBytes || instruction + 1 == segment.instructions.size()) continue;
    cuts.push_back(instruction + 1);
    bytes = 0;
  }
  return cuts;
}

// The order in which sums become complete: backward goes from the last stage to the first, and through a worker's
// actions.
class CompletionOrder {
 public:
  explicit CompletionOrder(const Executable& exe) : exe_(exe), position_(exe.segments.size(), 0) {
    for (const WorkerProgram& worker : exe.workers)
      for (size_t i = 0; i < worker.actions.size(); ++i) position_[worker.actions[i].segment] = i;
  }

  std::pair<int32_t, size_t> of(const Bucket& bucket) const {
    std::pair<int32_t, size_t> latest{INT32_MIN, 0};
    for (const int32_t s : bucket.makers) latest = std::max(latest, {-exe_.segments[s].stage, position_[s]});
    return latest;
  }

 private:
  const Executable& exe_;
  std::vector<size_t> position_;  // by segment: position of its last action
};

}  // namespace

bool overlap(const Executable& exe, int32_t slot, int32_t other) {
  const Slot &a = exe.slots[slot], &b = exe.slots[other];
  return a.group == b.group && a.offset_bytes < b.offset_bytes + b.type.extentBytes() &&
         b.offset_bytes < a.offset_bytes + a.type.extentBytes();
}

bool usesOffChipMemory(const Executable& executable) {
  return std::ranges::any_of(executable.groups, [](const Group& group) { return group.off_chip; });
}

void splitBackward(Executable& executable, std::vector<SegmentUses>& uses) {
  if (usesOffChipMemory(executable)) return;
  const std::vector<int32_t> sums = externalsOf(executable, ExternalKind::kAccumulator);
  cutSegments(executable, uses, /*origins=*/nullptr, [&](const Segment& segment) {
    return isBackward(segment) ? cutsOf(executable, segment, sums) : std::vector<size_t>();
  });
}

std::vector<Bucket> bucketsOf(const Executable& executable, const std::vector<int32_t>& sums) {
  std::map<int32_t, std::set<int32_t>> makers_of;
  for (size_t s = 0; s < executable.segments.size(); ++s) {
    if (executable.segments[s].direction == Direction::kUpdate) continue;
    for (const auto& [instruction, completed] : completedSums(executable, executable.segments[s], sums))
      for (const int32_t e : completed) makers_of[e].insert(static_cast<int32_t>(s));
  }
  std::map<std::set<int32_t>, std::vector<int32_t>> by_makers;
  for (const int32_t e : sums) by_makers[makers_of[e]].push_back(e);
  std::vector<Bucket> found;
  for (auto& [makers, externals] : by_makers) found.push_back({makers, std::move(externals)});
  const CompletionOrder order(executable);
  std::ranges::stable_sort(found, [&](const Bucket& a, const Bucket& b) { return order.of(a) < order.of(b); });
  std::vector<Bucket> buckets;
  int64_t bytes = kLeastBytes;  // size of the last bucket
  for (Bucket& bucket : found) {
    if (bytes >= kLeastBytes) {
      buckets.emplace_back();
      bytes = 0;
    }
    for (const int32_t e : bucket.sums) bytes += bytesOf(executable, e);
    buckets.back().makers.merge(bucket.makers);
    buckets.back().sums.insert(buckets.back().sums.end(), bucket.sums.begin(), bucket.sums.end());
  }
  return buckets;
}

}  // namespace abele::exe

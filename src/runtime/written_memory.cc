#include "runtime/written_memory.h"

#include <algorithm>

#include "exe/instruction_slots.h"

namespace abele::runtime {

WrittenMemory::WrittenMemory(const exe::Executable& executable) : ranges_(executable.groups.size()) {
  for (const exe::Segment& segment : executable.segments)
    for (const exe::Instruction& instruction : segment.instructions)
      exe::forEachWritten(instruction, [&](int32_t id) {
        if (id < 0) return;
        const exe::Slot& slot = executable.slots[id];
        ranges_[slot.group].push_back({slot.offset_bytes, slot.offset_bytes + slot.type.extentBytes()});
      });
  for (std::vector<Range>& group : ranges_) {
    std::sort(group.begin(), group.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    int64_t end = 0;
    for (Range& range : group) range.end = end = std::max(end, range.end);
  }
}

bool WrittenMemory::overlaps(const exe::Slot& slot) const {
  const std::vector<Range>& group = ranges_[slot.group];
  const auto behind = std::lower_bound(group.begin(), group.end(), slot.offset_bytes + slot.type.extentBytes(),
                                       [](const Range& range, int64_t offset) { return range.begin < offset; });
  return behind != group.begin() && (behind - 1)->end > slot.offset_bytes;
}

}  // namespace abele::runtime

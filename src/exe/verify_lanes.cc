#include <algorithm>

#include "base/cat.h"
#include "exe/instruction_slots.h"
#include "exe/verify_parts.h"

namespace abele::exe {
namespace {

// Does the slot reach beyond one micro-batch of the caller's tensor?
std::vector<bool> wideInputs(const Executable& exe) {
  std::vector<bool> is_wide(exe.slots.size(), false);
  std::vector<int64_t> end_of(exe.groups.size(), 0);  // of a micro-batch
  for (const int32_t id : exe.input_slots)
    if (id >= 0) end_of[exe.slots[id].group] = std::max(end_of[exe.slots[id].group], exe.slots[id].type.extentBytes());
  for (size_t s = 0; s < exe.slots.size(); ++s) {
    const Slot& slot = exe.slots[s];
    is_wide[s] = exe.groups[slot.group].kind == GroupKind::kInput &&
                 slot.offset_bytes + slot.type.extentBytes() > end_of[slot.group];
  }
  return is_wide;
}

bool readsAny(const Instruction& instruction, const std::vector<bool>& slots) {
  bool found = false;
  forEachOperand(instruction, [&](int32_t slot) { found = found || slots[static_cast<size_t>(slot)]; });
  return found;
}

bool takesAlike(const Instruction& a, const Instruction& b) {
  return std::ranges::equal(a.args, b.args, [](const Arg& x, const Arg& y) { return x.kind == y.kind; });
}

// The parts behind an instruction that stands for them.
bool hasParts(const std::vector<Instruction>& all, size_t joint, int64_t lanes) {
  if (all[joint].joins != lanes || all[joint].lane != 0 || all.size() - joint <= static_cast<size_t>(lanes))
    return false;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const Instruction& part = all[joint + 1 + static_cast<size_t>(lane)];
    if (part.joins != 0 || part.lane != lane || part.op != all[joint].op || !takesAlike(part, all[joint + 1]))
      return false;
  }
  return true;
}

}  // namespace

void checkLanes(const Executable& exe, std::vector<std::string>& findings) {
  const std::vector<bool> is_wide = wideInputs(exe);
  for (const Segment& segment : exe.segments) {
    const int64_t lanes = exe.lanesOf(segment);
    for (size_t i = 0; i < segment.instructions.size(); ++i) {
      const Instruction& instruction = segment.instructions[i];
      if (instruction.lane < 0 || instruction.lane >= lanes)
        findings.push_back(cat(segment.name, " ", instruction.op, ": lane ", instruction.lane, " of ", lanes));
      if (instruction.joins != 0 && (lanes == 1 || !hasParts(segment.instructions, i, lanes)))
        findings.push_back(
            cat(segment.name, " ", instruction.op, ": joins ", instruction.joins, " that do not follow"));
      if (instruction.joins == 0 && readsAny(instruction, is_wide))
        findings.push_back(cat(segment.name, " ", instruction.op, ": reads the rows of other micro-batches"));
    }
  }
}

}  // namespace abele::exe

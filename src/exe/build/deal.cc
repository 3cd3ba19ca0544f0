#include "exe/build/deal.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/instructions.h"
#include "exe/build/buckets.h"
#include "exe/build/parts.h"
#include "exe/instruction_slots.h"

namespace abele::exe {
namespace {

// More parts mean a shorter distance between workers and more waits, which take about a microsecond each.
constexpr size_t kMostParts = 32;

bool isPersistent(const Executable& exe, int32_t slot) {
  return exe.groups[exe.slots[slot].group].kind == GroupKind::kPersistent;
}

bool touches(const Executable& exe, const Instruction& instruction, int32_t slot) {
  bool found = false;
  const auto compare = [&](int32_t other) { found |= overlap(exe, slot, other); };
  forEachOperand(instruction, compare);
  forEachResult(instruction, compare);
  return found;
}

// A task ends with copies of new contents to externals. They move up to the last instruction before them that touches
// the same memory, so that the next micro-batch need not wait for the end of the task. origins: by instruction; may be
// null.
void moveCopiesUp(const Executable& exe, std::vector<Instruction>& instructions, Origins::value_type* origins) {
  for (size_t i = 0; i < instructions.size(); ++i) {
    if (ownOp(instructions[i].op) != OwnOp::kCopy) continue;
    const int32_t to = static_cast<int32_t>(instructions[i].args[0].i),
                  from = static_cast<int32_t>(instructions[i].args[1].i);
    if (!isPersistent(exe, to)) continue;
    size_t place = i;
    while (place > 0 && !touches(exe, instructions[place - 1], to) && !touches(exe, instructions[place - 1], from))
      --place;
    const auto moveUp = [&](auto& list) {
      const auto begin = list.begin() + static_cast<std::ptrdiff_t>(place);
      const auto last = list.begin() + static_cast<std::ptrdiff_t>(i);
      std::rotate(begin, last, last + 1);
    };
    moveUp(instructions);
    if (origins) moveUp(*origins);
  }
}

// Cuts into parts with about the same number of instructions each.
std::vector<size_t> evenCuts(size_t instructions) {
  const size_t parts = std::min(instructions, kMostParts);
  std::vector<size_t> cuts;
  for (size_t k = 1; k < parts; ++k) cuts.push_back(instructions * k / parts);
  return cuts;
}

int64_t bytesOf(const Executable& exe, const Instruction& instruction) {
  int64_t bytes = 0;
  forEachOperand(instruction, [&](int32_t slot) { bytes += exe.slots[slot].type.extentBytes(); });
  return bytes;
}

bool isShareable(const Executable& exe, const Segment& update) {
  return std::ranges::all_of(update.instructions, [&](const Instruction& i) {
    bool is_persistent = true;
    forEachOperand(i, [&](int32_t slot) { is_persistent &= isPersistent(exe, slot); });
    forEachResult(i, [&](int32_t slot) { is_persistent &= isPersistent(exe, slot); });
    return is_persistent;
  });
}

// Cuts into parts that read and write about the same number of bytes.
std::vector<size_t> cutsByBytes(const Executable& exe, const std::vector<Instruction>& instructions, int64_t parts) {
  int64_t all = 0, bytes = 0;
  for (const Instruction& i : instructions) all += bytesOf(exe, i);
  std::vector<size_t> cuts;
  for (size_t i = 0; i + 1 < instructions.size(); ++i) {
    bytes += bytesOf(exe, instructions[i]);
    if (bytes * parts >= all * static_cast<int64_t>(cuts.size() + 1)) cuts.push_back(i + 1);
  }
  return cuts;
}

}  // namespace

void dealMicroBatches(Executable& exe, std::vector<SegmentUses>& uses, int64_t devices, Origins* origins) {
  if (devices < 2) return;
  std::map<int32_t, int64_t> taker;  // by shared part of an update: the place of its worker
  if (origins) origins->resize(exe.segments.size());
  for (size_t s = 0; s < exe.segments.size(); ++s) {
    std::vector<Instruction>& instructions = exe.segments[s].instructions;
    if (origins) (*origins)[s].resize(instructions.size());
    if (exe.segments[s].direction != Direction::kUpdate)
      moveCopiesUp(exe, instructions, origins ? &(*origins)[s] : nullptr);
  }
  const PartsOf parts_of = cutSegments(exe, uses, origins, [&](const Segment& segment) {
    if (segment.direction != Direction::kUpdate) return evenCuts(segment.instructions.size());
    return isShareable(exe, segment) ? cutsByBytes(exe, segment.instructions, devices) : std::vector<size_t>();
  });
  for (const auto& [segment, parts] : parts_of)
    if (exe.segments[segment].direction == Direction::kUpdate)
      for (size_t k = 0; k < parts.size(); ++k) taker[parts[k]] = static_cast<int64_t>(k) % devices;
  const std::vector<WorkerProgram> whole = std::move(exe.workers);
  exe.workers.clear();
  for (int64_t place = 0; place < devices; ++place)
    for (const WorkerProgram& worker : whole) {
      ABELE_CHECK(!worker.isLink() && worker.replica == 0, "links or replicas");
      WorkerProgram& own = exe.workers.emplace_back(worker);
      own.device = static_cast<int32_t>(worker.device * devices + place);
      std::erase_if(own.actions, [&](const Action& a) {
        const auto found = taker.find(a.segment);
        return (found == taker.end() ? a.micro_batch % devices : found->second) != place;
      });
    }
}

}  // namespace abele::exe

#include "exe/executable.h"

#include <algorithm>
#include <set>

#include "base/cat.h"
#include "base/instructions.h"

namespace abele::exe {

const char* directionName(Direction d) { return kDirectionNames[static_cast<size_t>(d)].data(); }

std::string taskName(Direction d, int32_t stage) { return cat(kTaskNames[static_cast<size_t>(d)], "/", stage); }

int64_t Executable::numComputing() const {
  return std::ranges::count_if(workers, [](const WorkerProgram& w) { return !w.isLink(); });
}

int32_t Executable::processOf(int32_t group) const {
  const int32_t worker = groups[group].worker;
  return worker < 0 ? -1 : workers[worker].process;
}

std::vector<int32_t> slotsOf(const External& external, int32_t replica) {
  std::vector<int32_t> slots{external.slotOf(replica)};
  for (const ExternalCopy& copy : external.copies) slots.push_back(copy.slots[static_cast<size_t>(replica)]);
  return slots;
}

const ExternalCopy* copyWith(const External& external, int32_t slot) {
  for (const ExternalCopy& copy : external.copies)
    if (std::ranges::find(copy.slots, slot) != copy.slots.end()) return &copy;
  return nullptr;
}

int64_t Executable::inputParts() const { return input_part.empty() ? 1 : 1 + *std::ranges::max_element(input_part); }

std::vector<int32_t> externalsOf(const Executable& executable, ExternalKind kind) {
  std::vector<int32_t> found;
  for (size_t e = 0; e < executable.externals.size(); ++e)
    if (executable.externals[e].kind == kind && executable.externals[e].slot >= 0)
      found.push_back(static_cast<int32_t>(e));
  return found;
}

std::vector<int32_t> processesOfOutputs(const Executable& executable) {
  std::vector<int32_t> processes(executable.output_slots.size(), -1);
  for (const WorkerProgram& worker : executable.workers)
    for (const Action& action : worker.actions)
      for (const Instruction& i : executable.segments[action.segment].instructions) {
        if (ownOp(i.op) != OwnOp::kEmit) continue;
        const auto output = std::ranges::find(executable.output_slots, static_cast<int32_t>(i.args[0].i));
        processes[output - executable.output_slots.begin()] = worker.process;
      }
  return processes;
}

// --- bytes on devices and off them
namespace {

using Frame = std::pair<int32_t, int32_t>;  // group, frame

void add(const std::vector<FrameUse>& uses, std::set<Frame>& held) {
  for (const FrameUse& use : uses) held.insert({use.group, use.frame});
}

}  // namespace

int64_t residentBytes(const Executable& executable, int32_t worker) {
  int64_t bytes = 0;
  for (const Group& g : executable.groups)
    if (g.kind != GroupKind::kInput && g.kind != GroupKind::kOutput && !g.off_chip &&
        (g.worker < 0 ? 0 : g.worker) == worker)
      bytes += g.frames * g.frame_bytes;
  return bytes;
}

int64_t fetchedBytes(const Executable& executable, int32_t worker) {
  const std::vector<Action>& actions = executable.workers[worker].actions;
  std::set<Frame> held;
  int64_t most = 0;
  for (size_t i = 0; i < actions.size(); ++i) {
    add(actions[i].fetches, held);
    std::set<Frame> with_next = held;
    if (executable.fetch_ahead) add(actions[(i + 1) % actions.size()].fetches, with_next);
    int64_t bytes = 0;
    for (const auto& [group, frame] : with_next) bytes += executable.groups[group].frame_bytes;
    most = std::max(most, bytes);
    for (const FrameUse& use : actions[i].releases) held.erase({use.group, use.frame});
  }
  return most;
}

int64_t peakBytes(const Executable& executable, int32_t worker) {
  return residentBytes(executable, worker) + fetchedBytes(executable, worker);
}

int64_t offChipBytes(const Executable& executable) {
  int64_t bytes = 0;
  for (const Group& g : executable.groups)
    if (g.off_chip) bytes += g.frames * g.frame_bytes;
  return bytes;
}

}  // namespace abele::exe

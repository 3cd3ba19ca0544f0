#include "device/cpu/rounding_places.h"

#include <map>
#include <utility>

#include "base/instructions.h"
#include "collective/announcement.h"
#include "device/processes/joint_call.h"
#include "device/processes/message_call.h"

namespace abele::device {
namespace {

struct Held {
  uint64_t name;  // hash of the external's name
  uint64_t replica;
};

/// The memory of a slot: an external is written through slots with other ids.
std::pair<int32_t, int64_t> memoryOf(const exe::Executable& executable, int64_t slot) {
  const exe::Slot& at = executable.slots[static_cast<size_t>(slot)];
  return {at.group, at.offset_bytes};
}

/// The externals in each piece of memory.
std::map<std::pair<int32_t, int64_t>, Held> heldBy(const exe::Executable& executable, uint64_t first_replica) {
  std::map<std::pair<int32_t, int64_t>, Held> held;
  for (const exe::External& external : executable.externals) {
    if (external.slot < 0) continue;
    const auto kind = static_cast<uint64_t>(external.kind);
    const uint64_t hash = collective::hashOf(external.name.data(), external.name.size(), kind);
    // Downwards, so that slots shared by all replicas belong to the first.
    for (auto replica = static_cast<int32_t>(executable.replicas); --replica >= 0;)
      for (int32_t slot : exe::slotsOf(external, replica))
        held[memoryOf(executable, slot)] = {hash, first_replica + static_cast<uint64_t>(replica)};
  }
  return held;
}

}  // namespace

RoundingPlaces::RoundingPlaces(const exe::Executable& executable, int64_t process) : executable_(executable) {
  const auto first_replica = static_cast<uint64_t>(process * executable.replicas);
  const auto held = heldBy(executable, first_replica);
  for (const exe::Segment& segment : executable.segments) {
    Segment& made = segments_.emplace_back();
    made.replica = first_replica + static_cast<uint64_t>(segment.replica);
    uint64_t count = 0;
    for (const exe::Instruction& instruction : segment.instructions) {
      if (!isMessage(instruction) && !isJoint(instruction)) ++count;
      uint64_t place = count;
      const auto written =
          instruction.writes.empty() ? held.end() : held.find(memoryOf(executable, instruction.writes[0]));
      if (segment.direction == exe::Direction::kUpdate && written != held.end()) {
        place = written->second.name;
        // The added sum is then part of the first one's sum.
        if (instruction.op == ownOpName(OwnOp::kAdd))
          if (const auto added = held.find(memoryOf(executable, instruction.args[1].i)); added != held.end())
            place = kernels::RoundingSeed{place}.of(added->second.replica).value;
      }
      made.places.push_back(place);
    }
  }
}

kernels::RoundingSeed RoundingPlaces::of(const RoundingPosition& step, const runtime::ActionContext& action,
                                         std::size_t i) const {
  const kernels::RoundingSeed whole = kernels::RoundingSeed{step.seed}.of(step.step);
  const exe::Segment& segment = executable_.segments[action.segment];
  const Segment& numbered = segments_[action.segment];
  const uint64_t place = numbered.places[i];
  if (segment.direction == exe::Direction::kUpdate)
    return whole.of(static_cast<uint64_t>(action.micro_batch / executable_.accumulation)).of(~uint64_t{0}).of(place);
  return whole.of(static_cast<uint64_t>(action.micro_batch))
      .of(numbered.replica)
      .of(static_cast<uint64_t>(segment.stage))
      .of(static_cast<uint64_t>(segment.direction))
      .of(place);
}

}  // namespace abele::device

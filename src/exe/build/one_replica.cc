#include "exe/build/one_replica.h"

#include <algorithm>

#include "base/error.h"
#include "base/instructions.h"

namespace abele::exe {

ExternalPlaces::ExternalPlaces(const Executable& executable) {
  for (size_t e = 0; e < executable.externals.size(); ++e) {
    const External& external = executable.externals[e];
    if (external.slot < 0) continue;
    const auto add = [&](int32_t id) {
      const Slot& slot = executable.slots[id];
      const Place place{static_cast<int32_t>(e), id};
      const auto [it, is_new] = places_.emplace(Memory{slot.group, slot.offset_bytes}, place);
      if (!is_new && slot.type.extentBytes() > 0) it->second = place;  // one without elements has no memory of its own
    };
    add(external.slot);
    for (const ExternalCopy& copy : external.copies) add(copy.slots[0]);
  }
}

const ExternalPlaces::Place& ExternalPlaces::at(int32_t group, int64_t offset_bytes) const {
  auto it = places_.upper_bound({group, offset_bytes});
  const bool is_there = it != places_.begin() && (--it)->first.first == group;
  ABELE_CHECK(is_there, "memory at ", offset_bytes, " of group ", group, " belongs to no external");
  return it->second;
}

Messages::Messages(const Executable& executable, const std::vector<SegmentUses>& uses) {
  const auto messageOf = [&](size_t segment) -> const Instruction* {
    const std::vector<Instruction>& instructions = executable.segments[segment].instructions;
    return !instructions.empty() && hasTrait(instructions[0].op, kMessage) ? &instructions[0] : nullptr;
  };
  for (size_t s = 0; s < executable.segments.size(); ++s) {
    const Instruction* message = messageOf(s);
    if (!message) continue;
    links_ = std::max(links_, message->args[2].i + 1);
    if (ownOp(message->op) != OwnOp::kReceive) continue;
    received_[static_cast<int32_t>(s)] = message->args[0].ints;
    for (const int32_t maker : uses[s].makers)
      if (messageOf(maker)) received_[maker] = message->args[0].ints;
  }
}

void Messages::keep(size_t segment, const std::function<bool(int32_t)>& is_kept,
                    std::vector<Instruction>& instructions) const {
  const std::vector<int64_t>& received = received_.at(static_cast<int32_t>(segment));
  Instruction& message = instructions.at(0);
  std::vector<int64_t> kept;
  for (size_t i = 0; i < received.size(); ++i)
    if (is_kept(static_cast<int32_t>(received[i]))) kept.push_back(message.args[0].ints[i]);
  message.args[0].ints = kept;
  if (!message.writes.empty()) message.writes.assign(kept.begin(), kept.end());
  if (kept.empty()) instructions.clear();
}

}  // namespace abele::exe

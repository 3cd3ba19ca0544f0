#include "exe/build/external_places.h"

#include "base/error.h"

namespace abele::exe {

ExternalPlaces::ExternalPlaces(const Executable& executable) {
  for (size_t e = 0; e < executable.externals.size(); ++e) {
    const External& external = executable.externals[e];
    if (external.slot < 0) continue;
    add(static_cast<int32_t>(e), executable.slots[external.slot], external.slot);
    for (int32_t copy : external.copies) add(static_cast<int32_t>(e), executable.slots[copy], copy);
  }
}

void ExternalPlaces::add(int32_t external, const Slot& slot, int32_t id) {
  auto [it, is_new] = places_.emplace(Memory{slot.group, slot.offset_bytes}, Place{external, id});
  // A tensor without elements has no memory of its own.
  if (!is_new && slot.type.extentBytes() > 0) it->second = {external, id};
}

const ExternalPlaces::Place& ExternalPlaces::at(int32_t group, int64_t offset_bytes) const {
  auto it = places_.upper_bound({group, offset_bytes});
  ABELE_CHECK(it != places_.begin(), "memory at ", offset_bytes, " of group ", group, " belongs to no external");
  --it;
  ABELE_CHECK(it->first.first == group, "memory at ", offset_bytes, " of group ", group, " belongs to no external");
  return it->second;
}

}  // namespace abele::exe

// Private to exe/build: the memory of each external in the executable of one replica.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "exe/executable.h"

namespace abele::exe {

class ExternalPlaces {
 public:
  using Memory = std::pair<int32_t, int64_t>;  // group and offset
  /// The start of an external, or of its copy for another memory space.
  struct Place {
    int32_t external = -1, slot = -1;
  };

  explicit ExternalPlaces(const Executable& executable);
  /// Requires: an external starts there.
  const Place& at(int32_t group, int64_t offset_bytes) const;
  const std::map<Memory, Place>& all() const { return places_; }

 private:
  void add(int32_t external, const Slot& slot, int32_t id);
  std::map<Memory, Place> places_;
};

}  // namespace abele::exe

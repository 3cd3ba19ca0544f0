// The memory that the instructions of an executable write. Used by the devices.
#pragma once

#include <cstdint>
#include <vector>

#include "exe/executable.h"

namespace abele::runtime {

class WrittenMemory {
 public:
  explicit WrittenMemory(const exe::Executable& executable);
  /// Whether an instruction writes any byte of the slot.
  bool overlaps(const exe::Slot& slot) const;

 private:
  struct Range {
    int64_t begin, end;  // end: the largest end of this range and those before it
  };
  std::vector<std::vector<Range>> ranges_;  // by group, in the order of `begin`
};

}  // namespace abele::runtime

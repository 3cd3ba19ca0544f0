// What the instructions of an executable write. Used by the devices.
#pragma once

#include <cstdint>
#include <vector>

#include "exe/executable.h"

namespace abele::runtime {

class WrittenMemory {
 public:
  explicit WrittenMemory(const exe::Executable& executable);
  /// Does an instruction write any byte of the slot?
  bool overlaps(const exe::Slot& slot) const;

 private:
  struct Range {
    int64_t begin, end;  // end: the last one of this and those before
  };
  std::vector<std::vector<Range>> ranges_;  // by group, in the order of their begins
};

}  // namespace abele::runtime

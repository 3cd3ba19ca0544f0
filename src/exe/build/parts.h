// Private to exe/build: cuts segments into parts that run one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "exe/build/build.h"
#include "exe/build/dependencies.h"

namespace abele::exe {

/// By cut segment: its parts in order. The last one is the segment itself.
using PartsOf = std::map<int32_t, std::vector<int32_t>>;

/// Cuts each segment before the instructions that cutsOf returns in ascending order, and puts its parts one after the
/// other into the actions of its worker. A part waits for all that makes values of the whole segment, but only uses
/// the memory of its own instructions. origins: cut too; may be null.
PartsOf cutSegments(Executable& executable, std::vector<SegmentUses>& uses, Origins* origins,
                    const std::function<std::vector<size_t>(const Segment&)>& cutsOf);

}  // namespace abele::exe

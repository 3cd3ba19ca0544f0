// Private to exe/build: from the instructions of one micro-batch to those of several side by side.
#pragma once

#include <cstdint>
#include <vector>

#include "exe/executable.h"

namespace abele::exe {

/// A message between two processes: the segments of its ends, whose first instructions list its values.
struct MessageSegments {
  int32_t sends = -1, brings = -1;
};

/// Gives every instruction outside of updates a copy for each lane of Executable::lanes, lane 0 first. Where its
/// operands and results lie one behind the other as one tensor with a longer dimension 0, an instruction over all lanes
/// precedes the copies (Instruction::joins): whether its results have their bits is for the device to find out. What
/// does not depend on the micro-batch is made once.
/// A message has the values of all lanes.
/// lane_bytes: by slot, from one lane to the next; 0: all have the same. joins_inputs: the rows of micro-batches side
/// by side follow each other in the arguments. messages: all.
void addLanes(Executable& executable, const std::vector<int64_t>& lane_bytes, bool joins_inputs,
              const std::vector<MessageSegments>& messages);

}  // namespace abele::exe

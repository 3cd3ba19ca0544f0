// Does one call over the rows of several micro-batches give the bits of one call each? Used by device/aten.
#pragma once

#include <vector>

#include "exe/executable.h"

namespace abele::runtime {

/// An instruction over all lanes, and the part of one lane. By argument and, in lists, element; results and writes have
/// the order of the instruction's.
struct JoinedCall {
  const exe::Instruction& joint;
  const exe::Instruction& part;         // of the first lane
  const std::vector<exe::Slot>& slots;  // of the executable
  int64_t lanes = 1;
};

/// Is it an operator whose rows are alike, so that a trial is worth it?
bool mayJoinRows(const exe::Instruction& joint);
/// Tries both ways on random operands with the intra-op threads of the calling thread; once a process for each
/// operator, types, arguments and threads. Threads: safe.
bool joinsRows(const JoinedCall& call);

}  // namespace abele::runtime

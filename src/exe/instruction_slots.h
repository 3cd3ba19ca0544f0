// Visits the slots of an instruction. Read first: exe/executable.h.
#pragma once

#include <cstdint>

#include "exe/executable.h"

namespace abele::exe {

/// Calls fn(int32_t slot) for every tensor among the arguments and list elements, except absent ones.
template <class Fn>
void forEachOperand(const Instruction& instruction, Fn&& fn) {
  for (const Arg& arg : instruction.args) forEachId(arg, [&](int64_t slot) { fn(static_cast<int32_t>(slot)); });
}

/// Calls fn(int32_t slot) for every result that is kept.
template <class Fn>
void forEachResult(const Instruction& instruction, Fn&& fn) {
  for (const auto& results : instruction.results)
    for (const int32_t slot : results)
      if (slot >= 0) fn(slot);
}

/// Calls fn(int32_t slot) for every argument that the instruction writes, and for every result that is kept.
template <class Fn>
void forEachWritten(const Instruction& instruction, Fn&& fn) {
  for (const int32_t slot : instruction.writes) fn(slot);
  forEachResult(instruction, fn);
}

}  // namespace abele::exe

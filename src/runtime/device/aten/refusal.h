// What a kernel throws, as the user sees it.
#pragma once

#include <string>

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include "exe/executable.h"

namespace abele::runtime {

/// Values gave an operator's result another shape than the one that was captured.
struct OtherShape final : c10::Error {
  OtherShape(c10::IntArrayRef found, c10::IntArrayRef captured);
  std::string found, captured;
};

/// Throws E0601: the kernel's own words and the user's line, without ATen's backtrace. micro_batch: of those side by
/// side, whose the instruction is. Throws E0101 for OtherShape.
[[noreturn]] void refuseCall(const exe::Executable& executable, const exe::Instruction& instruction,
                             int64_t micro_batch, const c10::Error& error);

}  // namespace abele::runtime

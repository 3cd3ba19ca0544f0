// What a kernel throws, as the user sees it.
#pragma once

#include <c10/util/Exception.h>

#include "exe/executable.h"

namespace abele::runtime {

/// Throws E0601: the kernel's own words and the user's line, without ATen's backtrace. micro_batch: of those side by
/// side, whose the instruction is.
[[noreturn]] void refuseCall(const exe::Executable& executable, const exe::Instruction& instruction,
                             int64_t micro_batch, const c10::Error& error);

}  // namespace abele::runtime

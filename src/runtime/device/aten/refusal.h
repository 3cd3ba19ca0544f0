// What a kernel throws, as the user sees it.
#pragma once

#include <c10/util/Exception.h>

#include "exe/executable.h"

namespace abele::runtime {

/// Throws E0601: the kernel's own words and the user's line, without ATen's backtrace.
[[noreturn]] void refuseCall(const exe::Executable& executable, const exe::Instruction& instruction,
                             const c10::Error& error);

}  // namespace abele::runtime

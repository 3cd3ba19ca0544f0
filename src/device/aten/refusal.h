// Translates an error of a kernel for the user.
#pragma once

#include <string>

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include "exe/executable.h"

namespace abele::device {

/// An operator's result has another shape than in the capture, because the shape depends on values.
struct OtherShape final : c10::Error {
  OtherShape(c10::IntArrayRef found, c10::IntArrayRef captured);
  std::string found, captured;
};

/// Throws E0601 with the kernel's message and the user's line, without ATen's backtrace. Throws E0101 for OtherShape.
[[noreturn]] void refuseCall(const exe::Executable& executable, const exe::Instruction& instruction,
                             const c10::Error& error);

}  // namespace abele::device

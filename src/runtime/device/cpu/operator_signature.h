// Do the arguments of an instruction fit its operator? A boxed kernel takes what it is given without looking.
#pragma once

#include <ATen/core/function_schema.h>

#include "exe/executable.h"

namespace abele::runtime {

/// Throws E0501 for another number of arguments or results, or one that is not of the schema's type.
void requireSignature(const exe::Instruction& instruction, const c10::FunctionSchema& schema);

}  // namespace abele::runtime

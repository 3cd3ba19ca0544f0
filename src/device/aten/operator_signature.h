// Checks that the arguments of an instruction fit its operator. Boxed kernels do not check their arguments.
#pragma once

#include <ATen/core/function_schema.h>
#include <c10/core/Device.h>

#include "exe/executable.h"

namespace abele::device {

/// Throws E0501 for a wrong number of arguments or results, for an argument that is not of the schema's type, and for
/// an operand that the operator writes and the instruction does not list. device: where the instruction will run; a
/// device argument must be of its kind.
void requireSignature(const exe::Instruction& instruction, const c10::FunctionSchema& schema,
                      c10::Device device = c10::Device(c10::DeviceType::CPU));

}  // namespace abele::device

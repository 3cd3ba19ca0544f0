// Do the arguments of an instruction fit its operator? A boxed kernel takes what it is given without looking.
#pragma once

#include <ATen/core/function_schema.h>
#include <c10/core/Device.h>

#include "exe/executable.h"

namespace abele::runtime {

/// Throws E0501 for another number of arguments or results, one that is not of the schema's type, or an operand that
/// the operator writes and the instruction does not list. device: where it will run; a device among the arguments is of
/// that kind.
void requireSignature(const exe::Instruction& instruction, const c10::FunctionSchema& schema,
                      c10::Device device = c10::Device(c10::DeviceType::CPU));

}  // namespace abele::runtime

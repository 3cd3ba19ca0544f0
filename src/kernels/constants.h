// Arguments of an instruction that are the same in every call.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include "base/arg.h"

namespace abele::kernels {

/// The value of an argument without slot ids, in the parameter's type. A Python number becomes a wrapped-number tensor.
c10::IValue constantValue(const Arg& arg, const c10::Argument& parameter);

}  // namespace abele::kernels

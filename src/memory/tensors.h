// Tensors of a compiled type over memory.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "base/type.h"

namespace abele::memory {

/// A tensor of this type over the given memory, on the device of that memory.
at::Tensor tensorOver(c10::DataPtr memory, const Type& type);
c10::ScalarType scalarType(DType dtype);
/// Whether the tensor has this element type and these sizes; strides do not matter.
bool hasShape(const at::Tensor& tensor, const Type& type);
/// Whether the tensor has the strides of this type. Dimensions of one element may have any stride.
bool isLaidOutAs(const at::Tensor& tensor, const Type& type);
/// "f32[4,8]", for messages.
std::string describe(const at::Tensor& tensor);

}  // namespace abele::memory

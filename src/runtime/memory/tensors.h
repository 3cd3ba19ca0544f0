// Tensors of a compiled type over memory.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "base/type.h"

namespace abele::runtime {

/// A tensor of this type over foreign memory, on the device where that is.
at::Tensor tensorOver(c10::DataPtr memory, const Type& type);
c10::ScalarType scalarType(DType dtype);
/// Does the tensor have this element type and these sizes (strides aside)?
bool hasShape(const at::Tensor& tensor, const Type& type);
/// Do the tensor's rows lie as this type says? Dimensions of one element may lie anyhow.
bool isLaidOutAs(const at::Tensor& tensor, const Type& type);
/// "f32[4,8]".
std::string describe(const at::Tensor& tensor);

}  // namespace abele::runtime

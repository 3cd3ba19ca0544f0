// Tensors as the graph writes them, and what a program needs of their memory.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/TensorBase.h>

#include "base/type.h"

namespace at {
class Tensor;
}

namespace abele::host {

/// Type as the graph would write it; empty for an undefined tensor.
Type typeOf(const at::Tensor& tensor);

/// Throws E0708 where a tensor's storage is smaller than its sizes: somebody resized or freed it behind its back.
void requireMemory(const at::Tensor& tensor, const std::string& name);
/// Of each: "input 0".
void requireMemory(const std::vector<at::Tensor>& inputs);

/// Detached, with the strides that they have; lazy conjugates and negatives are computed.
std::vector<at::Tensor> bindable(const std::vector<at::Tensor>& inputs);

}  // namespace abele::host

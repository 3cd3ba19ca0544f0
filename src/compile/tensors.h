// ir::Types of tensors, and checks of their memory.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/TensorBase.h>

#include "base/type.h"

namespace at {
class Tensor;
}

namespace abele::compile {

/// The tensor's type; empty for an undefined tensor.
Type typeOf(const at::Tensor& tensor);

/// Throws E0708 if a tensor's storage is smaller than its sizes need, because the program resized or freed it.
void requireMemory(const at::Tensor& tensor, const std::string& name);
/// The same for each input, under the names "input 0", "input 1", ...
void requireMemory(const std::vector<at::Tensor>& inputs);

/// Returns true if the tensors have a byte of memory in common.
bool shareMemory(const at::Tensor& a, const at::Tensor& b);

/// The tensors, detached, with the same strides. Lazy conjugates and negatives are computed.
std::vector<at::Tensor> bindable(const std::vector<at::Tensor>& inputs);

}  // namespace abele::compile

// Types of tensors in the graph's terms, and checks of their memory.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/TensorBase.h>

#include "base/type.h"

namespace at {
class Tensor;
}

namespace abele::compile {

/// The type as the graph writes it; empty for an undefined tensor.
Type typeOf(const at::Tensor& tensor);

/// Throws E0708 if a tensor's storage is smaller than its sizes need, because the program resized or freed it.
void requireMemory(const at::Tensor& tensor, const std::string& name);
/// Checks each input, under the name "input 0" and so on.
void requireMemory(const std::vector<at::Tensor>& inputs);

/// Returns true if the tensors have a byte of memory in common.
bool shareMemory(const at::Tensor& a, const at::Tensor& b);

/// The tensors detached, with their strides. Computes lazy conjugates and negatives.
std::vector<at::Tensor> bindable(const std::vector<at::Tensor>& inputs);

}  // namespace abele::compile

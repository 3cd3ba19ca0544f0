// Copies and sums, of slots or of the caller's tensors. Threads: any. Requires: autograd is off.
#pragma once

#include <ATen/core/TensorBase.h>

namespace at {
class Tensor;
}

namespace abele::kernels {

void copyInto(const at::Tensor& to, const at::Tensor& from);
void fillZero(const at::Tensor& tensor);
/// sum += term; or sum = term if it is the first term.
void addInto(const at::Tensor& sum, const at::Tensor& term, bool first);

}  // namespace abele::kernels

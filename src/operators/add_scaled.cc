// A sum whose factor is a value of the device; ATen's own operator takes a number for it.
#include <ATen/core/Tensor.h>

#include "operators/library.h"

namespace abele::operators {

void addScaledKernel(at::Tensor self, const at::Tensor& other, const at::Tensor& scale) {
  self.add_(other, scale.item());
}

}  // namespace abele::operators

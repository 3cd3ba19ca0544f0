// A sum with a factor that is a value of the device, where ATen's own operator takes a number.
#include <ATen/core/Tensor.h>

#include "operators/library.h"

namespace abele::operators {

void addScaledKernel(at::Tensor self, const at::Tensor& other, const at::Tensor& scale) {
  self.add_(other, scale.item());
}

}  // namespace abele::operators

// The gradient of a value that is written through a mask: t[mask] = value. Autograd's own formula gathers the rows that
// the mask selects. Their number is a value of the device, whereas the result always has value's shape.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/index.h>

#include "operators/library.h"

namespace abele::operators {

at::Tensor maskedGradientKernel(const at::Tensor& grad, const at::Tensor& mask, int64_t dim, at::IntArrayRef sizes) {
  c10::List<std::optional<at::Tensor>> index;
  for (int64_t i = 0; i < dim; ++i) index.push_back(std::nullopt);
  index.push_back(mask);
  return at::sum_to(at::index(grad, index), sizes).contiguous();
}

}  // namespace abele::operators

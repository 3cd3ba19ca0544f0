// Products of matrices for Options.fusion("fast").
#include <ATen/ops/empty.h>

#include "kernels/basic.h"
#include "kernels/products.h"
#include "operators/library.h"

namespace abele::operators {

at::Tensor& productInto(const at::Tensor& left, const at::Tensor& right, at::Tensor& out) {
  kernels::fastProduct(out, left, right, /*adds=*/false);
  return out;
}

at::Tensor productKernel(const at::Tensor& left, const at::Tensor& right) {
  at::Tensor out = at::empty({left.size(0), right.size(1)}, left.options());
  return productInto(left, right, out);
}

at::Tensor& addedProductInto(const at::Tensor& term, const at::Tensor& left, const at::Tensor& right, at::Tensor& out) {
  kernels::copyInto(out, term.expand_as(out));
  kernels::fastProduct(out, left, right, /*adds=*/true);
  return out;
}

at::Tensor addedProductKernel(const at::Tensor& term, const at::Tensor& left, const at::Tensor& right) {
  at::Tensor out = at::empty({left.size(0), right.size(1)}, left.options());
  return addedProductInto(term, left, right, out);
}

}  // namespace abele::operators

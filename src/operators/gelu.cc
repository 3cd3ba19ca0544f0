// GELU for Options.fusion("fast"). ATen gives small tensors to a library that prepares each call for longer than it
// computes.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>

#include "kernels/gelu_loops.h"
#include "kernels/parallel.h"
#include "operators/library.h"

namespace abele::operators {
namespace {

using kernels::loops::GeluLoops;
using kernels::loops::geluLoops;

// elements in a range; fewer are not worth another thread
constexpr int64_t kGeluRange = 16384;

bool isDense(const at::Tensor& tensor) { return tensor.is_contiguous(); }

uint16_t* halves(at::Tensor& tensor) { return static_cast<uint16_t*>(tensor.mutable_data_ptr()); }
const uint16_t* halves(const at::Tensor& tensor) { return static_cast<const uint16_t*>(tensor.const_data_ptr()); }

// The loops for these tensors; null if ATen's kernel has to compute them.
const GeluLoops* geluLoopsOver(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& out) {
  const bool has_type = x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16;
  const bool is_alike = grad.scalar_type() == x.scalar_type() && out.scalar_type() == x.scalar_type() &&
                        grad.sizes() == x.sizes() && out.sizes() == x.sizes();
  return has_type && is_alike && isDense(x) && isDense(grad) && isDense(out) ? geluLoops() : nullptr;
}

}  // namespace

at::Tensor& geluInto(const at::Tensor& x, at::Tensor& out) {
  const GeluLoops* loops = geluLoopsOver(x, x, out);
  if (!loops) return at::gelu_out(out, x);
  kernels::shareOut(x.numel(), kGeluRange, [&](int64_t begin, int64_t end) {
    if (x.scalar_type() == at::kFloat)
      loops->forward(end - begin, out.mutable_data_ptr<float>() + begin, x.const_data_ptr<float>() + begin);
    else
      loops->forward_bf16(end - begin, halves(out) + begin, halves(x) + begin);
  });
  return out;
}

at::Tensor geluKernel(const at::Tensor& x) {
  at::Tensor out = at::empty_like(x);
  return geluInto(x, out);
}

at::Tensor& geluBackwardInto(const at::Tensor& grad, const at::Tensor& x, at::Tensor& out) {
  const GeluLoops* loops = geluLoopsOver(x, grad, out);
  if (!loops) return at::gelu_backward_out(out, grad, x);
  kernels::shareOut(x.numel(), kGeluRange, [&](int64_t begin, int64_t end) {
    if (x.scalar_type() == at::kFloat)
      loops->backward(end - begin, out.mutable_data_ptr<float>() + begin, grad.const_data_ptr<float>() + begin,
                      x.const_data_ptr<float>() + begin);
    else
      loops->backward_bf16(end - begin, halves(out) + begin, halves(grad) + begin, halves(x) + begin);
  });
  return out;
}

at::Tensor geluBackwardKernel(const at::Tensor& grad, const at::Tensor& x) {
  at::Tensor out = at::empty_like(x);
  return geluBackwardInto(grad, x, out);
}

}  // namespace abele::operators

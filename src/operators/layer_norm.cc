// Layer normalisation for Options.fusion("fast").
#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include "kernels/norm_loops.h"
#include "kernels/parallel.h"
#include "operators/library.h"

namespace abele::operators {
namespace {

using kernels::loops::NormLoops;
using kernels::loops::normLoops;
using kernels::loops::NormRows;

// kNormRange: elements in a range; fewer are not worth another thread. kBlock: rows whose gradients are computed while
// they are in the cache.
constexpr int64_t kNormRange = 16384, kBlock = 16;

bool isPlain(const at::Tensor& tensor) { return tensor.scalar_type() == at::kFloat && tensor.is_contiguous(); }

// The loops for these tensors; null if ATen's kernels have to compute them.
const NormLoops* normLoopsOver(const at::Tensor& x, const at::Tensor& weight,
                               std::initializer_list<at::Tensor> others) {
  const bool fits = isPlain(x) && isPlain(weight) && weight.numel() > 0 && x.numel() % weight.numel() == 0 &&
                    std::all_of(others.begin(), others.end(), isPlain);
  return fits ? normLoops() : nullptr;
}

NormRows rowsOf(const at::Tensor& x, const at::Tensor& weight) {
  return {.width = weight.numel(), .x = x.const_data_ptr<float>(), .weight = weight.const_data_ptr<float>()};
}

at::Tensor statisticsOf(const at::Tensor& x, size_t normalized) {
  std::vector<int64_t> sizes = x.sizes().vec();
  std::fill(sizes.end() - static_cast<std::ptrdiff_t>(normalized), sizes.end(), 1);
  return at::empty(sizes, x.options());
}

}  // namespace

ThreeTensors layerNormInto(const at::Tensor& x, at::IntArrayRef shape, const at::Tensor& weight, const at::Tensor& bias,
                           double eps, at::Tensor& y, at::Tensor& mean, at::Tensor& scale) {
  const NormLoops* loops = normLoopsOver(x, weight, {bias, y, mean, scale});
  if (!loops) {
    const auto [out, m, s] = at::native_layer_norm(x, shape, weight, bias, eps);
    y.copy_(out), mean.copy_(m), scale.copy_(s);
    return {y, mean, scale};
  }
  const NormRows rows = rowsOf(x, weight);
  kernels::shareOut(
      x.numel() / rows.width, std::max<int64_t>(kNormRange / rows.width, 1), [&](int64_t begin, int64_t end) {
        loops->forward(begin, end, rows, bias.const_data_ptr<float>(), static_cast<float>(eps),
                       y.mutable_data_ptr<float>(), mean.mutable_data_ptr<float>(), scale.mutable_data_ptr<float>());
      });
  return {y, mean, scale};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layerNormKernel(const at::Tensor& x, at::IntArrayRef shape,
                                                               const at::Tensor& weight, const at::Tensor& bias,
                                                               double eps) {
  at::Tensor y = at::empty_like(x), mean = statisticsOf(x, shape.size()), scale = at::empty_like(mean);
  layerNormInto(x, shape, weight, bias, eps, y, mean, scale);
  return {y, mean, scale};
}

ThreeTensors layerNormBackwardInto(const at::Tensor& grad, const at::Tensor& x, at::IntArrayRef shape,
                                   const at::Tensor& mean, const at::Tensor& scale, const at::Tensor& weight,
                                   at::Tensor& grad_x, at::Tensor& grad_weight, at::Tensor& grad_bias) {
  const NormLoops* loops = normLoopsOver(x, weight, {grad, mean, scale, grad_x, grad_weight, grad_bias});
  if (!loops) {
    const auto [dx, dw, db] =
        at::native_layer_norm_backward(grad, x, shape, mean, scale, weight, weight, {true, true, true});
    grad_x.copy_(dx), grad_weight.copy_(dw), grad_bias.copy_(db);
    return {grad_x, grad_weight, grad_bias};
  }
  const NormRows rows = rowsOf(x, weight);
  const int64_t num_rows = x.numel() / rows.width;
  const auto* g = grad.const_data_ptr<float>();
  const auto *m = mean.const_data_ptr<float>(), *s = scale.const_data_ptr<float>();
  auto *dx = grad_x.mutable_data_ptr<float>(), *dw = grad_weight.mutable_data_ptr<float>(),
       *db = grad_bias.mutable_data_ptr<float>();
  std::fill_n(dw, rows.width, 0.0F);
  std::fill_n(db, rows.width, 0.0F);
  if (x.numel() <= kNormRange || at::get_num_threads() == 1) {
    for (int64_t begin = 0; begin < num_rows; begin += kBlock) {
      const int64_t end = std::min(begin + kBlock, num_rows);
      loops->input_gradient(begin, end, rows, g, m, s, dx);
      loops->parameter_gradients(begin, end, 0, rows.width, rows, g, m, s, dw, db);
    }
    return {grad_x, grad_weight, grad_bias};
  }
  kernels::shareOut(num_rows, std::max<int64_t>(kNormRange / rows.width, 1),
                    [&](int64_t begin, int64_t end) { loops->input_gradient(begin, end, rows, g, m, s, dx); });
  kernels::shareOut(rows.width, std::max<int64_t>(kNormRange / num_rows, kBlock), [&](int64_t first, int64_t last) {
    loops->parameter_gradients(0, num_rows, first, last, rows, g, m, s, dw, db);
  });
  return {grad_x, grad_weight, grad_bias};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layerNormBackwardKernel(const at::Tensor& grad, const at::Tensor& x,
                                                                       at::IntArrayRef shape, const at::Tensor& mean,
                                                                       const at::Tensor& scale,
                                                                       const at::Tensor& weight) {
  at::Tensor grad_x = at::empty_like(x), grad_weight = at::empty_like(weight), grad_bias = at::empty_like(weight);
  layerNormBackwardInto(grad, x, shape, mean, scale, weight, grad_x, grad_weight, grad_bias);
  return {grad_x, grad_weight, grad_bias};
}

}  // namespace abele::operators

#include "runtime/kernels/optimizers.h"

#include <ATen/Parallel.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/addcdiv_cpu_dispatch.h>
#include <ATen/ops/addcmul_cpu_dispatch.h>
#include <ATen/ops/div_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/lerp_cpu_dispatch.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/neg_cpu_dispatch.h>
#include <ATen/ops/sqrt_cpu_dispatch.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace abele::runtime {
namespace {

using Tensors = c10::SmallVector<at::Tensor, 4>;

// Elements that an update works on at once: a parameter, its gradient, two states and a scratch stay in a core's cache.
constexpr int64_t kPart = 16384;

// A Python float as an operand. In the parameter's own type where ATen would convert it at every call; for half types
// it stays a double, because ATen computes with its exact value there.
at::Tensor number(double value, c10::ScalarType type) {
  at::Tensor tensor = type == at::kFloat ? c10::scalar_to_tensor(value).to(at::kFloat) : c10::scalar_to_tensor(value);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// Elements [begin, begin + count) in memory order.
at::Tensor window(const at::Tensor& tensor, int64_t begin, int64_t count) {
  at::Tensor part = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  part.unsafeGetTensorImpl()->set_sizes_contiguous(count);
  part.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset() + begin);
  return part;
}

bool haveOneLayout(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.is_non_overlapping_and_dense() && tensor.strides() == tensors[0].strides();
  });
}

// Calls fn(tensors, scratch) on parts that fit in the cache, spread over the intra-op threads. The updates are
// elementwise, so that parts give the same bits as the whole.
template <class Fn>
void forEachPart(const Tensors& tensors, const Fn& fn) {
  const int64_t elements = tensors[0].numel();
  if (elements <= kPart || !haveOneLayout(tensors)) {
    fn(tensors, at::empty_like(tensors[0]));
    return;
  }
  const at::Tensor scratches = at::empty({at::get_num_threads() * kPart}, tensors[0].options());
  at::parallel_for(0, (elements + kPart - 1) / kPart, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      const int64_t begin = part * kPart, count = std::min(kPart, elements - begin);
      Tensors windows;
      for (const at::Tensor& tensor : tensors) windows.push_back(window(tensor, begin, count));
      fn(windows, window(scratches, at::get_thread_num() * kPart, count));
    }
  });
}

// What every update starts from: the sum, scaled, turned round when the loss is maximised, with the L2 term.
at::Tensor gradientOf(const at::Tensor& param, const at::Tensor& sum, at::Tensor& scratch, const at::Tensor& scale,
                      double decay, const Hyper& hyper) {
  at::Tensor gradient = sum;
  if (hyper.gradient_scale != 1) gradient = at::cpu::mul_out(scratch, gradient, scale);
  if (hyper.maximize) gradient = at::cpu::neg_out(scratch, gradient);
  if (decay != 0) gradient = at::cpu::add_out(scratch, gradient, param, decay);
  return gradient;
}

}  // namespace

void updateSgd(const at::Tensor& param, const at::Tensor& gradient, const at::Tensor& momentum, bool nesterov,
               const Hyper& hyper) {
  ABELE_REQUIRE(momentum.defined() || hyper.momentum == 0, E0706,
                {.what = cat("momentum ", hyper.momentum, " for a parameter that was compiled without momentum"),
                 .remedy = "give the optimizer its momentum before the model is compiled"});
  const at::Tensor scale = number(hyper.gradient_scale, param.scalar_type());
  const at::Tensor mu = number(hyper.momentum, param.scalar_type());
  Tensors tensors = {param, gradient};
  if (momentum.defined()) tensors.push_back(momentum);
  forEachPart(tensors, [&](const Tensors& part, at::Tensor scratch) {
    at::Tensor weight = part[0];
    at::Tensor grad = gradientOf(weight, part[1], scratch, scale, hyper.weight_decay, hyper);
    if (part.size() == 2) {
      at::cpu::add_(weight, grad, -(hyper.lr * (1 - hyper.dampening)));
      return;
    }
    at::Tensor velocity = part[2];
    at::cpu::mul_(velocity, mu);
    at::cpu::add_(velocity, grad, 1 - hyper.dampening);
    if (nesterov) at::cpu::add_out(scratch, grad, velocity, hyper.momentum);
    at::cpu::add_(weight, nesterov ? scratch : velocity, -hyper.lr);
  });
}

void updateAdam(const at::Tensor& param, const at::Tensor& gradient, const at::Tensor& exp_avg,
                const at::Tensor& exp_avg_sq, const at::Tensor& step, bool decoupled_weight_decay, const Hyper& hyper) {
  float& count = *step.mutable_data_ptr<float>();
  count += 1;
  const double correction1 = 1 - std::pow(hyper.beta1, static_cast<double>(count));
  const double correction2 = 1 - std::pow(hyper.beta2, static_cast<double>(count));
  const double l2 = decoupled_weight_decay ? 0 : hyper.weight_decay;
  const bool shrink = decoupled_weight_decay && hyper.weight_decay != 0;

  const c10::ScalarType type = param.scalar_type();
  const at::Tensor scale = number(hyper.gradient_scale, type);
  const at::Tensor shrinkage = number(1 - hyper.lr * hyper.weight_decay, type);
  const at::Tensor beta2 = number(hyper.beta2, type);
  const at::Tensor root = number(std::pow(correction2, 0.5), type);
  const at::Tensor eps = number(hyper.eps, type);
  forEachPart({param, gradient, exp_avg, exp_avg_sq}, [&](const Tensors& part, at::Tensor scratch) {
    at::Tensor weight = part[0], average = part[2], square = part[3];
    if (shrink) at::cpu::mul_(weight, shrinkage);
    const at::Tensor grad = gradientOf(weight, part[1], scratch, scale, l2, hyper);
    at::cpu::lerp_(average, grad, 1 - hyper.beta1);
    at::cpu::mul_(square, beta2);
    at::cpu::addcmul_(square, grad, grad, 1 - hyper.beta2);
    at::Tensor denominator = at::cpu::sqrt_out(scratch, square);
    at::cpu::div_(denominator, root);
    at::cpu::add_(denominator, eps);
    at::cpu::addcdiv_(weight, average, denominator, -(hyper.lr / correction1));
  });
}

}  // namespace abele::runtime

#include "runtime/kernels/optimizers.h"

#include <cmath>

#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/addcdiv_cpu_dispatch.h>
#include <ATen/ops/addcmul_cpu_dispatch.h>
#include <ATen/ops/div_cpu_dispatch.h>
#include <ATen/ops/lerp_cpu_dispatch.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/neg_cpu_dispatch.h>
#include <ATen/ops/sqrt_cpu_dispatch.h>

#include "base/error.h"

namespace abele::runtime {
namespace {

// A Python float as an operand.
at::Tensor number(double value) {
  at::Tensor tensor = c10::scalar_to_tensor(value);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// What every update starts from: scaled, and turned round when the loss is maximised.
at::Tensor effectiveGradient(const at::Tensor& gradient, const Hyper& hyper) {
  at::Tensor sum = gradient;
  if (hyper.gradient_scale != 1) at::cpu::mul_(sum, number(hyper.gradient_scale));
  return hyper.maximize ? at::cpu::neg(sum) : sum;
}

}  // namespace

void updateSgd(const at::Tensor& param, const at::Tensor& gradient, const at::Tensor& momentum, bool nesterov,
               const Hyper& hyper) {
  ABELE_REQUIRE(momentum.defined() || hyper.momentum == 0, E0706,
                {.what = cat("momentum ", hyper.momentum, " for a parameter that was compiled without momentum"),
                 .remedy = "give the optimizer its momentum before the model is compiled"});
  at::Tensor weight = param;
  at::Tensor grad = effectiveGradient(gradient, hyper);
  if (hyper.weight_decay != 0) grad = at::cpu::add(grad, weight, hyper.weight_decay);
  if (!momentum.defined()) {
    at::cpu::add_(weight, grad, -(hyper.lr * (1 - hyper.dampening)));
    return;
  }
  at::Tensor velocity = momentum;
  at::cpu::mul_(velocity, number(hyper.momentum));
  at::cpu::add_(velocity, grad, 1 - hyper.dampening);
  if (nesterov) grad = at::cpu::add(grad, velocity, hyper.momentum);
  at::cpu::add_(weight, nesterov ? grad : velocity, -hyper.lr);
}

void updateAdam(const at::Tensor& param, const at::Tensor& gradient, const at::Tensor& exp_avg,
                const at::Tensor& exp_avg_sq, const at::Tensor& step, bool decoupled_weight_decay, const Hyper& hyper) {
  at::Tensor weight = param, average = exp_avg, square = exp_avg_sq;
  at::Tensor grad = effectiveGradient(gradient, hyper);
  float& count = *step.mutable_data_ptr<float>();
  count += 1;
  if (hyper.weight_decay != 0) {
    if (decoupled_weight_decay)
      at::cpu::mul_(weight, number(1 - hyper.lr * hyper.weight_decay));
    else
      grad = at::cpu::add(grad, weight, hyper.weight_decay);
  }
  at::cpu::lerp_(average, grad, 1 - hyper.beta1);
  at::cpu::mul_(square, number(hyper.beta2));
  at::cpu::addcmul_(square, grad, grad, 1 - hyper.beta2);

  const double correction1 = 1 - std::pow(hyper.beta1, static_cast<double>(count));
  const double correction2 = 1 - std::pow(hyper.beta2, static_cast<double>(count));
  at::Tensor denominator = at::cpu::sqrt(square);
  at::cpu::div_(denominator, number(std::pow(correction2, 0.5)));
  at::cpu::add_(denominator, number(hyper.eps));
  at::cpu::addcdiv_(weight, average, denominator, -(hyper.lr / correction1));
}

}  // namespace abele::runtime

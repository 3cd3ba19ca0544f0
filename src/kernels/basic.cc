#include "kernels/basic.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/zero_cpu_dispatch.h>

#include "kernels/element_loops.h"

namespace abele::kernels {
namespace {

// ATen adds this many on one thread, and takes longer to prepare the call than to add.
constexpr int64_t kSmall = 32768;

bool isSmall(const at::Tensor& sum, const at::Tensor& term) {
  return sum.numel() < kSmall && sum.is_cpu() && sum.scalar_type() == at::kFloat && term.scalar_type() == at::kFloat &&
         sum.sizes() == term.sizes() && sum.is_contiguous() && term.is_contiguous();
}

}  // namespace

void copyInto(const at::Tensor& to, const at::Tensor& from) {
  if (!to.is_cpu() || !from.is_cpu()) {
    to.copy_(from);
    return;
  }
  at::_ops::copy_::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), const_cast<at::Tensor&>(to), from,
                              /*non_blocking=*/false);
}

void fillZero(const at::Tensor& tensor) {
  if (tensor.is_cpu())
    at::cpu::zero_(const_cast<at::Tensor&>(tensor));
  else
    tensor.zero_();
}

void addInto(const at::Tensor& sum, const at::Tensor& term, bool first) {
  if (first)
    copyInto(sum, term);
  else if (isSmall(sum, term))
    kernels::loops::add(sum.numel(), sum.mutable_data_ptr<float>(), term.const_data_ptr<float>());
  else if (sum.is_cpu())
    at::cpu::add_(const_cast<at::Tensor&>(sum), term);
  else
    sum.add_(term);
}

}  // namespace abele::kernels

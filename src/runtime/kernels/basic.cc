#include "runtime/kernels/basic.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/zero_cpu_dispatch.h>

namespace abele::runtime {

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
  else if (sum.is_cpu())
    at::cpu::add_(const_cast<at::Tensor&>(sum), term);
  else
    sum.add_(term);
}

}  // namespace abele::runtime

// Elementwise operators for the updates: on the CPU without the dispatcher, elsewhere through it.
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/addcdiv_cpu_dispatch.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/addcmul_cpu_dispatch.h>
#include <ATen/ops/div.h>
#include <ATen/ops/div_cpu_dispatch.h>
#include <ATen/ops/lerp_cpu_dispatch.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/neg_cpu_dispatch.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sqrt_cpu_dispatch.h>

// The functions have the names and arguments of ATen's.
namespace abele::kernels::ops {

// self.NAME(operands...)
#define ABELE_IN_PLACE(name)                                                          \
  template <class... Operands>                                                        \
  at::Tensor& name(at::Tensor& self, const Operands&... operands) {                   \
    return self.is_cpu() ? at::cpu::name(self, operands...) : self.name(operands...); \
  }
// at::NAME(out, operands...)
#define ABELE_INTO(name)                                                                \
  template <class... Operands>                                                          \
  at::Tensor& name(at::Tensor& out, const Operands&... operands) {                      \
    return out.is_cpu() ? at::cpu::name(out, operands...) : at::name(out, operands...); \
  }
ABELE_IN_PLACE(add_)
ABELE_IN_PLACE(addcdiv_)
ABELE_IN_PLACE(addcmul_)
ABELE_IN_PLACE(div_)
ABELE_IN_PLACE(lerp_)
ABELE_IN_PLACE(mul_)
ABELE_IN_PLACE(sqrt_)
ABELE_INTO(add_out)
ABELE_INTO(addcmul_out)
ABELE_INTO(div_out)
ABELE_INTO(mul_out)
ABELE_INTO(neg_out)
ABELE_INTO(sqrt_out)
#undef ABELE_IN_PLACE
#undef ABELE_INTO

inline at::Tensor div(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cpu() ? at::cpu::div(a, b) : at::div(a, b);
}
inline at::Tensor mul(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cpu() ? at::cpu::mul(a, b) : at::mul(a, b);
}

}  // namespace abele::kernels::ops

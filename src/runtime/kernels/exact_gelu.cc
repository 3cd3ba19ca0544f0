#include "runtime/kernels/exact_gelu.h"

#include <bit>
#include <cstring>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu_backward_cpu_dispatch.h>
#include <ATen/ops/gelu_cpu_dispatch.h>

#include "base/processor_loops.h"
#include "runtime/kernels/parallel.h"

namespace abele::runtime {
namespace {

// Elements that are worth another thread.
constexpr int64_t kRange = 16384;
// oneDNN computes the gradient of a single element in another way.
constexpr int64_t kFewest = 16;
constexpr int64_t kUpperHalves = 1 << 16;

bool hasSameBits(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

// One number for each upper half of a float32: every sign and exponent, infinities and NaN, with a lower half that
// differs from one to the next.
bool hasBitsOfAten(const loops::ExactGelu& loops) {
  const auto numbers = [] { return at::empty({kUpperHalves}, at::kFloat); };
  at::Tensor x = numbers(), grad = numbers(), expected = numbers(), found = numbers();
  for (uint32_t i = 0; i < kUpperHalves; ++i) {
    x.mutable_data_ptr<float>()[i] = std::bit_cast<float>(i << 16 | (i * 40503U & 0xFFFFU));
    grad.mutable_data_ptr<float>()[i] = static_cast<float>(i * 2654435761U >> 8) * 0x1p-23F - 1.0F;
  }
  const float* numbers_of_x = x.const_data_ptr<float>();
  at::cpu::gelu_out(expected, x);
  loops.forward(kUpperHalves, found.mutable_data_ptr<float>(), numbers_of_x);
  if (!hasSameBits(expected, found)) return false;
  at::cpu::gelu_backward_out(expected, grad, x);
  loops.backward(kUpperHalves, found.mutable_data_ptr<float>(), grad.const_data_ptr<float>(), numbers_of_x);
  return hasSameBits(expected, found);
}

// Null: ATen's kernel has to do it.
const loops::ExactGelu* loopsOver(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& out) {
  const bool fits = x.numel() >= kFewest && x.is_contiguous() && grad.is_contiguous() && out.is_contiguous() &&
                    grad.sizes() == x.sizes() && out.sizes() == x.sizes();
  return fits && at::globalContext().userEnabledMkldnn() ? exactGelu() : nullptr;
}

}  // namespace

const loops::ExactGelu* exactGelu() {
#if defined(__x86_64__)
  static const loops::ExactGelu* const found =
      processor() == Processor::kAvx512 && hasBitsOfAten(loops::kExactGeluAvx512) ? &loops::kExactGeluAvx512 : nullptr;
  return found;
#else
  return nullptr;
#endif
}

void exactGeluInto(at::Tensor& out, const at::Tensor& x) {
  const loops::ExactGelu* loops = loopsOver(x, x, out);
  if (!loops) {
    at::cpu::gelu_out(out, x);
    return;
  }
  float* to = out.mutable_data_ptr<float>();
  const float* from = x.const_data_ptr<float>();
  shareOut(x.numel(), kRange,
           [&](int64_t begin, int64_t end) { loops->forward(end - begin, to + begin, from + begin); });
}

void exactGeluBackwardInto(at::Tensor& out, const at::Tensor& grad, const at::Tensor& x) {
  const loops::ExactGelu* loops = loopsOver(x, grad, out);
  if (!loops) {
    at::cpu::gelu_backward_out(out, grad, x);
    return;
  }
  float* to = out.mutable_data_ptr<float>();
  const float *from_grad = grad.const_data_ptr<float>(), *from = x.const_data_ptr<float>();
  shareOut(x.numel(), kRange, [&](int64_t begin, int64_t end) {
    loops->backward(end - begin, to + begin, from_grad + begin, from + begin);
  });
}

}  // namespace abele::runtime

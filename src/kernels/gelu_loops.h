// GELU and its gradient over contiguous elements, for Options.fusion("fast"). One exponential gives both the normal
// distribution and its density; ATen's kernels evaluate an error function.
//
// Bounds, of float32 against the real function, with u = 2^-24: gelu(x) within 6 u |x| + u |gelu(x)|, the gradient's
// factor within 6 u (1 + |x|). For infinite values and NaN the results are ATen's. bfloat16: computed in float32 and
// rounded once.
#pragma once

#include <cstdint>

namespace abele::kernels::loops {

/// Loops for one kind of processor.
struct GeluLoops {
  void (*forward)(int64_t count, float* to, const float* x);
  void (*forward_bf16)(int64_t count, uint16_t* to, const uint16_t* x);
  void (*backward)(int64_t count, float* to, const float* grad, const float* x);
  void (*backward_bf16)(int64_t count, uint16_t* to, const uint16_t* grad, const uint16_t* x);
};

/// The loops for this processor; null if there are none.
const GeluLoops* geluLoops();

namespace avx2 {
extern const GeluLoops kGelu;
}
namespace avx512 {
extern const GeluLoops kGelu;
}

}  // namespace abele::kernels::loops

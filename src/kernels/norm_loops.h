// Layer normalisation and its gradients over contiguous rows of float32, for Options.fusion("fast"). Faster than
// ATen's: every row is read only once from memory, and for small tensors ATen's preparation takes longer than the
// computation.
//
//   m = sum x / n    s = 1 / sqrt(sum (x - m)^2 / n + eps)    y = (x - m) s w + b
//
// Bounds against the real numbers, with u = 2^-24, n the width, k = n / 32 + 10, A the largest |x| of a row and
// h = (x - m) s: m within k u A; s within (k + 4) u s; y within u (|w| (2 k + 8) (A s + |h|) + 2 |b|). The gradients
// are bounded in test/unit/kernels/norm_loops_test.cc. All bounds require that k u A s is far below 1.
#pragma once

#include <cstdint>

namespace abele::kernels::loops {

/// The tensors that both directions of a normalisation read. Rows are [num_rows, width]; weight and bias [width].
struct NormRows {
  int64_t width = 0;
  const float* x = nullptr;
  const float* weight = nullptr;
};

/// Loops for one kind of processor, over the rows or the columns from begin to end.
struct NormLoops {
  void (*forward)(int64_t begin, int64_t end, const NormRows& rows, const float* bias, float eps, float* y, float* mean,
                  float* scale);
  void (*input_gradient)(int64_t begin, int64_t end, const NormRows& rows, const float* grad, const float* mean,
                         const float* scale, float* grad_x);
  /// Adds the rows from begin to end, for the columns from first to last.
  void (*parameter_gradients)(int64_t begin, int64_t end, int64_t first, int64_t last, const NormRows& rows,
                              const float* grad, const float* mean, const float* scale, float* grad_weight,
                              float* grad_bias);
};

/// The loops for this processor; null if we have none for it.
const NormLoops* normLoops();

namespace avx2 {
extern const NormLoops kNorm;
}
namespace avx512 {
extern const NormLoops kNorm;
}

}  // namespace abele::kernels::loops

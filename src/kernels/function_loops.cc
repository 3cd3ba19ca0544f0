// Chooses the loops of functions for this processor.
#include "base/processor_loops.h"
#include "kernels/gelu_loops.h"
#include "kernels/norm_loops.h"

namespace abele::kernels::loops {

const GeluLoops* geluLoops() {
#if defined(__x86_64__)
  return loopsFor(kernels::loops::avx2::kGelu, kernels::loops::avx512::kGelu);
#else
  return nullptr;
#endif
}

const NormLoops* normLoops() {
#if defined(__x86_64__)
  return loopsFor(kernels::loops::avx2::kNorm, kernels::loops::avx512::kNorm);
#else
  return nullptr;
#endif
}

}  // namespace abele::kernels::loops

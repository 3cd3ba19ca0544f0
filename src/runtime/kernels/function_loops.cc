// Chooses the loops of functions for this processor.
#include "base/processor_loops.h"
#include "runtime/kernels/gelu_loops.h"
#include "runtime/kernels/norm_loops.h"

namespace abele::runtime::loops {

const GeluLoops* geluLoops() {
#if defined(__x86_64__)
  return loopsFor(avx2::kGelu, avx512::kGelu);
#else
  return nullptr;
#endif
}

const NormLoops* normLoops() {
#if defined(__x86_64__)
  return loopsFor(avx2::kNorm, avx512::kNorm);
#else
  return nullptr;
#endif
}

}  // namespace abele::runtime::loops

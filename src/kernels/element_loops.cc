#include "kernels/element_loops.h"

namespace abele::kernels::loops {

void add(int64_t count, float* __restrict to, const float* __restrict from) {
  for (int64_t i = 0; i < count; ++i) to[i] = to[i] + from[i];
}

void addToZero(int64_t count, float* __restrict to, const float* __restrict from) {
  for (int64_t i = 0; i < count; ++i) to[i] = 0.0F + from[i];
}

}  // namespace abele::kernels::loops

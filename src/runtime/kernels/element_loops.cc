#include "runtime/kernels/element_loops.h"

namespace abele::runtime::loops {

void add(int64_t count, float* __restrict to, const float* __restrict from) {
  for (int64_t i = 0; i < count; ++i) to[i] = to[i] + from[i];
}

void addToZero(int64_t count, float* __restrict to, const float* __restrict from) {
  for (int64_t i = 0; i < count; ++i) to[i] = 0.0F + from[i];
}

void addAll(int64_t count, float* __restrict to, const float* const* from, int64_t terms, bool begins) {
  constexpr int64_t kBlock = 32;  // elements whose sums stay in registers
  float sum[kBlock];
  for (int64_t at = 0; at < count; at += kBlock) {
    const int64_t size = count - at < kBlock ? count - at : kBlock;
    for (int64_t i = 0; i < size; ++i) sum[i] = begins ? from[0][at + i] : to[at + i];
    for (int64_t term = begins ? 1 : 0; term < terms; ++term) {
      const float* const next = from[term] + at;
      if (size == kBlock)
        for (int64_t i = 0; i < kBlock; ++i) sum[i] = sum[i] + next[i];
      else
        for (int64_t i = 0; i < size; ++i) sum[i] = sum[i] + next[i];
    }
    for (int64_t i = 0; i < size; ++i) to[at + i] = sum[i];
  }
}

}  // namespace abele::runtime::loops

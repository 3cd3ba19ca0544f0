// Sums over contiguous float32 elements. Each element is rounded once, so the width of vectors does not matter.
// Compiled for speed (CMakeLists.txt).
#pragma once

#include <cstdint>

namespace abele::kernels::loops {

/// to[i] += from[i]
void add(int64_t count, float* to, const float* from);
/// to[i] = 0 + from[i], the value of a sum that starts as zero after its first term.
void addToZero(int64_t count, float* to, const float* from);

}  // namespace abele::kernels::loops

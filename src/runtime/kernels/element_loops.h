// Sums of float32 elements that lie one behind the other: one rounding each, so that the width of vectors does not
// matter. Compiled for speed (CMakeLists.txt).
#pragma once

#include <cstdint>

namespace abele::runtime::loops {

/// to[i] += from[i]
void add(int64_t count, float* to, const float* from);
/// to[i] = 0 + from[i]: what a sum that starts with zeros is after its first term.
void addToZero(int64_t count, float* to, const float* from);

}  // namespace abele::runtime::loops

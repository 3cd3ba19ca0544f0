// The loops of exact_gelu.h; no header of LibTorch, so that a unit for one kind of processor can include it.
#pragma once

#include <cstdint>

namespace abele::runtime::loops {

/// Elements that lie one behind the other; `to` may be one of the operands.
struct ExactGelu {
  void (*forward)(int64_t count, float* to, const float* x);
  void (*backward)(int64_t count, float* to, const float* grad, const float* x);
};

#if defined(__x86_64__)
extern const ExactGelu kExactGeluAvx512;
#endif

}  // namespace abele::runtime::loops

// Stochastic rounding to float16. Threads: any.
#pragma once

#include <cstdint>

#include <ATen/core/TensorBase.h>

namespace at {
class Tensor;
}

namespace abele::kernels {

/// The seed of the random numbers of one rounding. Equal seeds round equal values to equal results.
struct RoundingSeed {
  uint64_t value = 0;
  /// A further seed, made from this one and a number.
  RoundingSeed of(uint64_t number) const;
};

/// to = from, where each element is rounded to one of its two neighbours in float16, with the probability that makes
/// the expectation exact. Values that float16 can hold stay the same, also NaN and infinity. Values that overflow are
/// rounded as usual.
/// Requires: to is float16 and from float32, of the same sizes. Source: spec environment.md section 11.
void roundInto(const at::Tensor& to, const at::Tensor& from, RoundingSeed seed);

}  // namespace abele::kernels

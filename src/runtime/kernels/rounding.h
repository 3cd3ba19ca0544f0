// Stochastic rounding to float16. Threads: any.
#pragma once

#include <cstdint>

#include <ATen/core/TensorBase.h>

namespace at {
class Tensor;
}

namespace abele::runtime {

/// Where the random numbers of one rounding come from: equal seeds round equal values alike.
struct RoundingSeed {
  uint64_t value = 0;
  /// The seed of a part: mixes in a number.
  RoundingSeed of(uint64_t number) const;
};

/// to = from, each element rounded to one of its two neighbours in float16 with the probability that makes the
/// expectation exact; values that float16 holds stay as they are, and so do NaN, infinity and what overflows.
/// Requires: to is float16 and from float32, of the same sizes. Source: spec environment.md section 11.
void roundInto(const at::Tensor& to, const at::Tensor& from, RoundingSeed seed);

}  // namespace abele::runtime

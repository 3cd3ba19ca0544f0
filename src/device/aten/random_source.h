// The random numbers of one worker's step. Each kind of device has its own stream of them.
#pragma once

#include <cstdint>

#include <ATen/core/Generator.h>

namespace abele::device {

/// How many numbers an operator draws, and where they are in the stream of the step. Draws of normal numbers count
/// separately (base/normals.h).
struct RandomPlace {
  int64_t draws_before = 0;
  int64_t normals_before = 0;
  int64_t spare = 0;  // draws of the step up to the end of the pair whose spare the operator takes
  int64_t draws = 0;
  int64_t normals = 0;
};

/// One sequence of random numbers over all micro-batches, read at known positions. Threads: the worker's.
class RandomSource {
 public:
  virtual ~RandomSource() = default;
  /// Moves the generator to the place and returns it. The caller draws exactly the numbers that `place` counts.
  virtual const at::Generator& draw(const RandomPlace& place) = 0;
  /// For an operator that names a generator but draws nothing.
  virtual const at::Generator& generator() const = 0;
};

/// A generator of the user's program, and its draws before the micro-batch.
struct OwnDraws {
  RandomSource* random = nullptr;
  int64_t draws_base = 0;
  int64_t normals_base = 0;
};

}  // namespace abele::device

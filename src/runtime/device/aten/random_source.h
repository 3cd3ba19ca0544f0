// The random numbers of one worker's step. Each kind of device has its own stream of them.
#pragma once

#include <cstdint>

#include <ATen/core/Generator.h>

namespace abele::runtime {

/// What an operator draws, and where in the step. Draws leave out those of normal numbers (base/normals.h).
struct RandomPlace {
  int64_t draws_before = 0;
  int64_t normals_before = 0;
  int64_t spare = 0;  // draws of the step before the end of the pair whose spare it finds
  int64_t draws = 0;
  int64_t normals = 0;
};

/// One sequence over all micro-batches, read at known positions. Threads: the worker's.
class RandomSource {
 public:
  virtual ~RandomSource() = default;
  /// The generator, standing at the place. The caller draws exactly what it says.
  virtual const at::Generator& draw(const RandomPlace& place) = 0;
  /// For an operator that names a generator and draws nothing.
  virtual const at::Generator& generator() const = 0;
};

/// A generator of the program's own, and what lies in its stream before the micro-batch.
struct OwnDraws {
  RandomSource* random = nullptr;
  int64_t draws_base = 0;
  int64_t normals_base = 0;
};

}  // namespace abele::runtime

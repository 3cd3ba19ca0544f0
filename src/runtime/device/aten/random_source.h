// The random numbers of one worker's step. Each kind of device has its own stream of them.
#pragma once

#include <cstdint>

#include <ATen/core/Generator.h>

namespace abele::runtime {

/// One sequence over all micro-batches, read at known positions. Threads: the worker's.
class RandomSource {
 public:
  virtual ~RandomSource() = default;
  /// The generator, standing at `position`. The caller draws exactly `draws` numbers from it, or fewer.
  virtual const at::Generator& draw(int64_t position, int64_t draws, bool or_fewer = false) = 0;
  /// For an operator that names a generator and draws nothing.
  virtual const at::Generator& generator() const = 0;
};

}  // namespace abele::runtime

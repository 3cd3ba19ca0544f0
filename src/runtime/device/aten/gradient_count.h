// What automatic loss scaling looks at. Torch-free.
#pragma once

#include <atomic>
#include <cstdint>

namespace abele::runtime {

/// Elements of float16 gradients that were counted. Threads: all workers count.
struct GradientCount {
  std::atomic<int64_t> large = 0;  // above the edge in magnitude, infinite or NaN
  std::atomic<int64_t> all = 0;
  std::atomic<bool> overflowed = false;  // a gradient sum is not finite, and the updates were skipped
};

}  // namespace abele::runtime

// The counts that automatic loss scaling uses. Torch-free.
#pragma once

#include <atomic>
#include <cstdint>

namespace abele::device {

/// Counts of elements of float16 gradients. Threads: all workers count.
struct GradientCount {
  std::atomic<int64_t> large = 0;  // above the edge in magnitude, infinite or NaN
  std::atomic<int64_t> all = 0;
  std::atomic<bool> overflowed = false;  // a gradient sum was not finite, so the updates were skipped
};

}  // namespace abele::device

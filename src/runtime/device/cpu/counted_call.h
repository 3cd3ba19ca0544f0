// How large float16 gradients are: what automatic loss scaling looks at. Used by cpu_device.cc.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "runtime/device/cpu/operator_call.h"

namespace abele::runtime {

/// Elements of float16 gradients that were counted. Threads: all workers count.
struct GradientCount {
  std::atomic<int64_t> large = 0;  // above the edge in magnitude, infinite or NaN
  std::atomic<int64_t> all = 0;
  std::atomic<bool> overflowed = false;  // a gradient sum is not finite, and the updates were skipped
};

/// The call, and after it a count of its float16 results. Returns call itself where it has none, or only moves them.
/// Source: spec optim.md section 4.
std::unique_ptr<Call> makeCountedCall(std::unique_ptr<Call> call, const exe::Instruction& instruction,
                                      const SlotTable& slots, double edge, GradientCount& count);

}  // namespace abele::runtime

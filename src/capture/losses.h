// Torch's own loss functions mark their results. Used by capture.cc.
#pragma once

#include <cstdint>

namespace abele::capture {

/// While it lives, every loss operator of losses.def that the program calls on this thread is marked as by markLoss.
class BuiltInLosses {
 public:
  BuiltInLosses();
  ~BuiltInLosses();
  BuiltInLosses(const BuiltInLosses&) = delete;
  BuiltInLosses& operator=(const BuiltInLosses&) = delete;

 private:
  uint64_t handle_;
};

}  // namespace abele::capture

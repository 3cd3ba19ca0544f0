// Observes the program's composite operators, which never reach the dispatch mode. Used by capture.cc.
#pragma once

#include <cstdint>

namespace abele::capture {

/// While an object lives, on this thread: marks results of torch's loss functions (losses.def) by markLoss; refuses
/// operators that read operands' memory directly (raw_reads.def) if the operands vary (E0101); allows reads that only
/// check arguments (one_hot). The recorder keeps errors, because torch only logs exceptions thrown here.
class CompositeObserver {
 public:
  CompositeObserver();
  ~CompositeObserver();
  CompositeObserver(const CompositeObserver&) = delete;
  CompositeObserver& operator=(const CompositeObserver&) = delete;

 private:
  uint64_t handle_;
};

}  // namespace abele::capture

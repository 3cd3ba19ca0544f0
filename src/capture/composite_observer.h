// Sees the composite operators of the program, which never reach the dispatch mode. Used by capture.cc.
#pragma once

#include <cstdint>

namespace abele::capture {

/// While it lives, on this thread: results of torch's loss functions (losses.def) are marked as by markLoss; operators
/// that read operands behind torch's back (raw_reads.def) are refused when those vary (E0101); reads that are only
/// argument checks (one_hot) are allowed. Errors are kept by the recorder, because torch only logs what is thrown here.
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

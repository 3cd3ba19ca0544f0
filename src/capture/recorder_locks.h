// The operands of one operator, unlocked while it is recorded. Used by recorder.cc.
#pragma once

#include <vector>

#include "capture/recorder.h"

namespace abele::capture {

/// Does it hand out memory that nobody has written yet?
bool isAllocation(const ir::Node& node);

class Recorder::Unlocked {
 public:
  Unlocked(Recorder& recorder, torch::jit::Stack* stack, size_t num_arguments);
  /// Locks what the operator has made or written, too.
  void close(size_t num_results);
  ~Unlocked();
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  Recorder& recorder_;
  torch::jit::Stack* stack_;
  std::vector<WeakStorage> operands_;  // weak: kernels may ask who else holds an operand
};

}  // namespace abele::capture

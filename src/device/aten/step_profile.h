// Shows the workers' operators to torch.profiler, if the caller of a step records with it.
#pragma once

#include <memory>
#include <string>

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "exe/executable.h"

namespace abele::device {

/// The profiler's observers on the thread that runs a step. Threads: begin() on the caller's while the workers are
/// parked; the rest on any.
class StepProfile {
 public:
  /// Remembers the observers of this thread.
  void begin();
  bool isOn() const { return is_on_; }

  /// Lives during an action of a worker: meanwhile the observers also see the worker's thread. Costs nothing without
  /// observers.
  class Action {
   public:
    Action(const StepProfile& profile, const exe::Segment& segment);
    ~Action();
    Action(const Action&) = delete;
    bool isOn() const { return record_ != nullptr; }

   private:
    at::RecordFunctionTLS functions_before_;
    std::shared_ptr<c10::ThreadLocalDebugInfo> info_before_;
    std::unique_ptr<at::RecordFunction> record_;
  };

 private:
  bool is_on_ = false;
  at::RecordFunctionTLS functions_;
  std::shared_ptr<c10::ThreadLocalDebugInfo> info_;
};

}  // namespace abele::device

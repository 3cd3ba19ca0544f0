// Sees every ATen call made on this thread, below autograd and above the backends. Used by recorder.cc and capture.cc.
#pragma once

#include <memory>

#include <ATen/core/stack.h>

namespace c10 {
class OperatorHandle;
}

namespace abele::capture {

/// Receives the calls. The mode is off while onOperator runs, so ATen may be used freely there.
class OperatorObserver {
 public:
  virtual ~OperatorObserver() = default;
  /// Must leave the operator's results on the stack instead of its arguments, or throw.
  virtual void onOperator(const c10::OperatorHandle& op, torch::jit::Stack* stack) = 0;
};

/// While it lives, every ATen call of this thread (and of autograd threads it starts) goes to the observer.
/// mode_object stands for the mode where Python looks at the mode stack; it must outlive the DispatchMode.
/// On destruction torch's mode stack is as it was at construction. Threads: construct and destroy on one thread.
class DispatchMode {
 public:
  DispatchMode(OperatorObserver* observer, void* mode_object);
  ~DispatchMode();
  DispatchMode(const DispatchMode&) = delete;
  DispatchMode& operator=(const DispatchMode&) = delete;

  /// Inside onOperator: turns the mode on again for a scope, so that the calls a kernel makes are seen one by one.
  class Resumed {
   public:
    explicit Resumed(const DispatchMode& mode);
    ~Resumed();
    Resumed(const Resumed&) = delete;
    Resumed& operator=(const Resumed&) = delete;
  };
  /// Turns the mode off for a scope outside onOperator. No-op when it is not on top.
  class Paused {
   public:
    explicit Paused(const DispatchMode& mode);
    ~Paused();
    Paused(const Paused&) = delete;
    Paused& operator=(const Paused&) = delete;

   private:
    const DispatchMode* mode_ = nullptr;
  };

 private:
  struct Entry;
  std::shared_ptr<Entry> entry_;
};

}  // namespace abele::capture

// Observes every ATen call on this thread, below autograd and above the backends. Used by recorder.cc and capture.cc.
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/stack.h>

namespace c10 {
class DebugInfoGuard;
class OperatorHandle;
}  // namespace c10

namespace abele::capture {

/// Receives the calls. The mode is off while onOperator runs, so ATen calls there are not observed.
class OperatorObserver {
 public:
  virtual ~OperatorObserver() = default;
  /// Replaces the operator's arguments on the stack by its results, or throws.
  virtual void onOperator(const c10::OperatorHandle& op, torch::jit::Stack* stack) = 0;
};

/// While it lives, every ATen call of this thread (and of autograd threads it starts) goes to the observer, after
/// composite operators were decomposed. Composite operators choose as they do without a mode.
/// mode_object represents the mode on Python's mode stack; it must outlive the DispatchMode. The destructor restores
/// torch's thread-local state. Threads: construct and destroy on one thread.
class DispatchMode {
 public:
  struct Entry;

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

   private:
    struct Scope;
    std::unique_ptr<Scope> scope_;
  };
  /// While autograd runs: autograd makes the same choices as without a mode, but its calls are observed.
  class Hidden {
   public:
    explicit Hidden(const DispatchMode& mode);
    ~Hidden();
    Hidden(const Hidden&) = delete;
    Hidden& operator=(const Hidden&) = delete;

   private:
    const DispatchMode& mode_;
  };
  /// Turns the mode off for a scope outside onOperator. No-op inside it and while it is off.
  class Paused {
   public:
    explicit Paused(const DispatchMode& mode);
    ~Paused();
    Paused(const Paused&) = delete;
    Paused& operator=(const Paused&) = delete;

   private:
    struct Scope;
    std::unique_ptr<Scope> scope_;
  };

 private:
  struct Before;
  std::unique_ptr<Before> before_;
  std::shared_ptr<Entry> entry_;
  std::unique_ptr<c10::DebugInfoGuard> active_;
  uint64_t callback_ = 0;
};

/// Whether ATen decomposes the operator into others on every device.
bool isComposite(const c10::OperatorHandle& op);

}  // namespace abele::capture

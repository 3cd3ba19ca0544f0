// Makes calls of several threads on one object run one after another.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "base/fork.h"

namespace abele {

/// A call from outside: the thread that made it, and the workers that run parts of it.
struct Caller;
/// The call that this thread works for.
Caller* currentCaller();

/// While this object lives, this thread is part of another thread's call. Requires: that call waits for this thread.
class WorksFor {
 public:
  explicit WorksFor(Caller* caller);
  ~WorksFor();
  WorksFor(const WorksFor&) = delete;
  WorksFor& operator=(const WorksFor&) = delete;

 private:
  Caller* outer_;
};

/// A lock that callers get in the order of their requests. A caller that already has it, or whose wait could never end,
/// gets E0608. In a forked child the lock is free, unless the forking thread had it. Threads: safe.
class Turns {
 public:
  class Turn {
   public:
    Turn() = default;
    explicit Turn(Turns* turns) : turns_(turns) {}
    Turn(Turn&& other) noexcept : turns_(std::exchange(other.turns_, nullptr)) {}
    Turn& operator=(Turn&& other) noexcept {
      std::swap(turns_, other.turns_);
      return *this;
    }
    ~Turn() {
      if (turns_) turns_->unlock();
    }

   private:
    Turns* turns_ = nullptr;
  };

  Turns() = default;
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  /// Waits until it is the caller's turn. what: for messages, "the model". poll: called about every 50 ms while
  /// waiting. If it returns true the wait ends with E0602; its exceptions pass through.
  [[nodiscard]] Turn take(const char* what, const std::function<bool()>& poll = {}) {
    lock(what, poll);
    return Turn(this);
  }
  /// Does not wait: returns nothing if another caller has the lock or waits for it.
  [[nodiscard]] std::optional<Turn> takeIfFree();
  /// The same as take(), for callers that call unlock() themselves.
  void lock(const char* what, const std::function<bool()>& poll = {});
  void unlock() noexcept;
  /// True if the call that this thread works for has the lock.
  bool isMine();
  /// The number of waiting callers.
  int64_t numWaiting();

  struct Waiter;

 private:
  void passOn();  // callers hold the mutex of turns.cc
  void forgetTheParent();
  void requireEnd(const Caller* me, const char* what) const;
  bool waitsForMine(const Caller* me) const;

  Caller* owner_ = nullptr;
  std::deque<Waiter*> waiting_;
  int64_t generation_ = forkGeneration();
};

}  // namespace abele

#include "base/turns.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/error.h"
#include "base/fork.h"

namespace abele {

/// A waiting thread.
struct Turns::Waiter {
  Caller* caller;
  const Turns* turns;
  Waiter* next_of_caller = nullptr;
  bool is_next = false;
  std::condition_variable woken = {};
};

// Has no destructor to run: the main thread's object is in use until static objects are gone.
struct Caller {
  Turns::Waiter* first_wait = nullptr;  // waits of all threads that work for this call

  void add(Turns::Waiter& waiter) { waiter.next_of_caller = std::exchange(first_wait, &waiter); }
  void remove(const Turns::Waiter& waiter) {
    Turns::Waiter** place = &first_wait;
    while (*place != &waiter) place = &(*place)->next_of_caller;
    *place = waiter.next_of_caller;
  }
};

namespace {

constexpr auto kPollPeriod = std::chrono::milliseconds(50);

// One mutex for all Turns, because whether a wait can end depends on all of them. It is held for a few instructions at
// a time.
ProcessMutex& mutex() {
  static auto* const instance = new ProcessMutex;  // never destroyed: models of static lifetime may end later
  return *instance;
}

thread_local Caller* works_for = nullptr;

// The only thread of a forked child works for itself.
[[maybe_unused]] const int registered = ::pthread_atfork(nullptr, nullptr, [] { works_for = nullptr; });

}  // namespace

Caller* currentCaller() {
  thread_local Caller own;
  return works_for ? works_for : &own;
}

WorksFor::WorksFor(Caller* caller) : outer_(std::exchange(works_for, caller)) {}
WorksFor::~WorksFor() { works_for = outer_; }

void Turns::lock(const char* what, const std::function<bool()>& poll) {
  Caller* const me = currentCaller();
  std::unique_lock<std::mutex> lock(mutex());
  forgetTheParent();
  if (!owner_) {
    owner_ = me;
    return;
  }
  requireEnd(me, what);
  Waiter waiter{me, this};
  waiting_.push_back(&waiter);
  me->add(waiter);
  const auto is_next = [&] { return waiter.is_next; };
  bool stops = false;
  try {
    while (poll && !stops && !waiter.woken.wait_for(lock, kPollPeriod, is_next)) {
      lock.unlock();
      stops = poll();
      lock.lock();
    }
    if (stops)
      throwUser(ErrorCode::E0602, {.what = cat("waiting for ", what, " was interrupted"), .remedy = "call again"});
    waiter.woken.wait(lock, is_next);
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    me->remove(waiter);
    waiter.is_next ? passOn() : static_cast<void>(std::erase(waiting_, &waiter));
    throw;
  }
  me->remove(waiter);
}

std::optional<Turns::Turn> Turns::takeIfFree() {
  const std::lock_guard lock(mutex());
  forgetTheParent();
  if (owner_) return std::nullopt;
  owner_ = currentCaller();
  return Turn(this);
}

bool Turns::isMine() {
  const std::lock_guard lock(mutex());
  forgetTheParent();
  return owner_ == currentCaller();
}

int64_t Turns::numWaiting() {
  const std::lock_guard lock(mutex());
  forgetTheParent();
  return static_cast<int64_t>(waiting_.size());
}

void Turns::unlock() noexcept {
  const std::lock_guard lock(mutex());
  forgetTheParent();
  passOn();
}

void Turns::passOn() {
  owner_ = nullptr;
  if (waiting_.empty()) return;
  Waiter* const next = waiting_.front();
  waiting_.pop_front();
  owner_ = next->caller;
  next->is_next = true;
  next->woken.notify_one();
}

void Turns::forgetTheParent() {
  if (generation_ == forkGeneration()) return;
  generation_ = forkGeneration();
  waiting_.clear();
  if (owner_ != currentCaller()) owner_ = nullptr;
}

bool Turns::waitsForMine(const Caller* me) const {
  if (owner_ == nullptr) return false;
  if (owner_ == me) return true;
  for (const Waiter* waiter = owner_->first_wait; waiter != nullptr; waiter = waiter->next_of_caller)
    if (!waiter->is_next && waiter->turns->waitsForMine(me)) return true;
  return false;
}

// The recursion ends: a thread that would close a circle of waits is refused before it waits.
void Turns::requireEnd(const Caller* me, const char* what) const {
  ABELE_REQUIRE(owner_ != me, E0608,
                {.what = cat(what, " is called from within a call of its own"),
                 .found = "a hook, a host function or forward that calls it",
                 .expected = "one call at a time",
                 .remedy = "return from the outer call first, or use another model inside"});
  ABELE_REQUIRE(!waitsForMine(me), E0608,
                {.what = cat("waiting for ", what, " would never end"),
                 .found = "a call on another thread has it, and waits for something that this call has",
                 .expected = "the same order of calls between models in all threads",
                 .remedy = "call one model after the other, or wrap the inner model's module a second time"});
}

}  // namespace abele

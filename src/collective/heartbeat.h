// For C10dPeers: notices that the process before this one is silent although its connection was not closed: a host
// without power, a cut link, a stopped process. The processes form a ring, and each one sends beats to the next.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace abele::collective {

/// Three threads that mostly sleep. Threads: end() from any thread, also from the calls below; the rest from its
/// owner's.
class Heartbeat {
 public:
  /// The state of the process before: it is there; it ended normally with no work left; or it cannot be heard any more.
  enum class Heard { kPresent, kGoodbye, kNothing };

  struct Calls {
    /// Sends a beat to the next process; waits for a beat of the process before. Each blocks as long as needed and runs
    /// on a thread of its own. `tell` returns false once the next process has left.
    std::function<bool()> tell;
    std::function<Heard()> hear;
    /// Called when the process before was heard once, and then was silent for longer than silence_s. Called at most
    /// once.
    std::function<void()> lost;
  };
  /// silence_s: how long the process before may be silent after its first beat. The time before that beat does not
  /// count.
  Heartbeat(Calls calls, int64_t silence_s);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// Sends no more beats.
  void end();
  /// Waits for its threads. The caller has made `tell` and `hear` return.
  void join();

 private:
  void tellAll();
  void hearAll();
  void watch();
  /// Returns false at the end.
  bool sleep();

  const Calls calls_;
  const int64_t silence_s_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable ended_;
  bool is_over_ = false;
  int64_t heard_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace abele::collective

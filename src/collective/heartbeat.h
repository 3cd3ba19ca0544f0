// For C10dPeers: notices that the previous process is silent although its connection was not closed: a host without
// power, a cut link, a stopped process. The processes form a ring, and each one sends beats to the next.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace abele::collective {

/// Three threads that mostly sleep. Threads: end() from any thread, also from the functions in Calls; the other
/// functions by the owner only.
class Heartbeat {
 public:
  /// The state of the previous process. kPresent: it sent a beat. kGoodbye: it ended normally with no work left.
  /// kNothing: no beat can arrive any more.
  enum class Heard { kPresent, kGoodbye, kNothing };

  struct Calls {
    /// tell: sends a beat to the next process; returns false once that process has left. hear: waits for a beat of the
    /// previous process. Each blocks as long as needed and runs on a thread of its own.
    std::function<bool()> tell;
    std::function<Heard()> hear;
    /// Called at most once: when the previous process sent a beat and was then silent for longer than silence_s.
    std::function<void()> lost;
  };
  /// silence_s: how long the previous process may be silent after its first beat. The time before that beat does not
  /// count.
  Heartbeat(Calls calls, int64_t silence_s);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// Stops sending beats.
  void end();
  /// Waits for its threads. Requires: the caller has made `tell` and `hear` return.
  void join();

 private:
  void tellAll();
  void hearAll();
  void watch();
  /// Returns false after end().
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

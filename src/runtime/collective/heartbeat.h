// For C10dPeers: notices that the process before this one is silent, though no connection was closed: a host that lost
// its power, a cut link, a stopped process. Every process tells the next one, round a ring, that it is there.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace abele::runtime {

/// Three threads that mostly sleep. Threads: end() from any, also from the calls below; the rest is its owner's.
class Heartbeat {
 public:
  /// Of the process before: it is there; it ended with nothing left to do; or it cannot be heard any more.
  enum class Heard { kPresent, kGoodbye, kNothing };

  struct Calls {
    /// Tells the next process, and hears the one before. Each waits as long as it takes; they are called from a thread
    /// each. tell returns false once there is nobody to tell.
    std::function<bool()> tell;
    std::function<Heard()> hear;
    /// The process before has been heard of, and not for the time below. Called once at most.
    std::function<void()> lost;
  };
  /// silence_s: how long the process before may be silent; what it does before its first beat is nobody's concern.
  Heartbeat(Calls calls, int64_t silence_s);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// No beat after this one.
  void end();
  /// Waits for its threads. `tell` and `hear` have been made to return.
  void join();

 private:
  void tellAll();
  void hearAll();
  void watch();
  /// False at the end.
  bool sleep();

  const Calls calls_;
  const int64_t silence_s_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable ended_;
  bool is_over_ = false;
  int64_t heard_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace abele::runtime

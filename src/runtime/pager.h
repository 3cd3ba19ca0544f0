// Moves one worker's off-chip memory while the worker runs. Private to runtime/.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/backend.h"
#include "runtime/runtime.h"

namespace abele::runtime {

/// Owns a thread that does the fetches and releases of a worker's actions, in their order. Frames that an action
/// releases are freed before the fetches of the action after the next. This limits the memory that is used at one time.
/// Threads: before() and after() by one thread at a time, in the order of the actions; reset() by any when nothing
/// runs.
class Pager {
 public:
  Pager(Backend& backend, const exe::WorkerProgram& worker, bool fetch_ahead);
  ~Pager();
  Pager(const Pager&) = delete;

  /// Waits for the action's fetches, and starts those of the next action. Rethrows the errors of fetches.
  void before(size_t action);
  void after(size_t action);
  /// Drops pending fetches and errors after a failed step.
  void reset();
  /// Adds the times since the last call to `into`. Must be called after every step.
  void takeTimes(int32_t worker, std::chrono::steady_clock::time_point begin, std::vector<PagingTime>& into);

 private:
  struct Done {
    bool is_fetch = false;
    std::chrono::steady_clock::time_point begin, end;
  };
  struct Job {
    const std::vector<exe::FrameUse>* frames = nullptr;
    bool is_fetch = false;
  };
  static constexpr size_t kNone = static_cast<size_t>(-1);

  void work();
  void post(Job job);
  void request(size_t action);

  Backend& backend_;
  const exe::WorkerProgram& worker_;
  const bool fetch_ahead_;
  size_t requested_ = kNone;  // action whose fetches were posted last
  int64_t ticket_ = 0;        // number of jobs posted up to that one

  std::mutex mutex_;
  std::condition_variable posted_, finished_;
  std::deque<Job> jobs_;  // guarded by mutex_, as are all members below
  std::vector<Done> done_;
  int64_t num_posted_ = 0, num_done_ = 0;
  bool stopping_ = false;
  std::exception_ptr error_;
  std::jthread thread_;  // last member, so that it is joined first
};

}  // namespace abele::runtime

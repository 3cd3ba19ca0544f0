// Threads for the workers of all programs of the process.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "base/fork.h"

namespace abele::runtime {

/// A step borrows a thread for each of its workers. So there are as many threads as the steps that run at the same time
/// need, however many programs there are. The threads end with the last program.
/// Threads: safe.
class WorkerThreads {
 public:
  static constexpr int64_t kNone = -1;
  struct Job {
    int32_t worker = 0;
    int64_t program = 0;
    /// moves_in: the thread's last job was for another program.
    std::function<void(bool moves_in)> work;
    /// Called after work on the same thread, which is free for the next job by then. Takes little time.
    std::function<void()> done;
  };

  /// The threads of this process. A forked child has its own.
  static std::shared_ptr<WorkerThreads> ofProcess();

  WorkerThreads() = default;
  /// Requires: all jobs are done.
  ~WorkerThreads();
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;

  /// Runs a job on an idle thread for its worker: on one that worked for the program last, if there is one. Starts a
  /// thread if none is idle.
  void run(Job job);
  /// Runs `work` on each idle thread whose last job was for the program, then `done`. Returns their number.
  int64_t leave(int64_t program, const std::function<void(int32_t worker)>& work, const std::function<void()>& done);

 private:
  struct Thread {
    int32_t worker = 0;
    int64_t program = kNone;  // the last one
    bool is_idle = false;
    Job job;
    std::condition_variable wakes;
    std::jthread thread;  // last member, so that it is joined first
  };

  Thread* idle(const Job& job, bool of_program);
  void give(Thread& thread, Job job);
  void work(Thread& thread);

  std::mutex mutex_;
  bool stops_ = false;
  std::list<Thread> threads_;
};

}  // namespace abele::runtime

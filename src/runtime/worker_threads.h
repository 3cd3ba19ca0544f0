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

/// A step uses a thread for each of its workers and then returns it. The number of threads depends on how many steps
/// run at the same time, not on the number of programs. The threads end with the last program.
/// Threads: safe.
class WorkerThreads {
 public:
  struct Job {
    int32_t worker = 0;
    int64_t program = 0;
    /// moves_in: true if the thread is not yet prepared for the program. Returns true if it is prepared afterwards.
    std::function<bool(bool moves_in)> work;
    /// Called after work on the same thread, which can already get its next job. Must take little time.
    std::function<void()> done;
  };

  /// The threads of this process. A forked child has its own.
  static std::shared_ptr<WorkerThreads> ofProcess();

  WorkerThreads() = default;
  /// Requires: all jobs are done.
  ~WorkerThreads();
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;

  /// Runs a job on an idle thread, preferably on one that is prepared for the program's worker. Starts a thread if none
  /// is idle. Throws std::system_error if no thread can start.
  void run(Job job);
  /// Runs `work` on each idle thread that is prepared for the program, then `done`. Afterwards the thread is prepared
  /// for no program. Returns the number of these threads.
  int64_t leave(int64_t program, const std::function<void(int32_t worker)>& work, const std::function<void()>& done);

 private:
  static constexpr int64_t kNone = -1;
  struct Thread {
    int32_t worker = 0;
    int64_t program = kNone;  // program for which it is prepared
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

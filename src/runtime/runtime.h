// Runs an Executable with one thread per worker and counters between them. It has no schedule logic of its own.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "exe/executable.h"
#include "runtime/backend.h"

namespace abele::runtime {

/// The time of one action. Units: ns since the step began.
struct ActionTime {
  int32_t worker = 0;
  int32_t segment = 0;
  int32_t micro_batch = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};
/// The time in which the worker's paging thread moved the memory of an action. Units: as ActionTime. Times below 0: the
/// move belongs to the previous step but ended after it.
struct PagingTime {
  int32_t worker = 0;
  bool is_fetch = false;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};
struct StepReport {
  int64_t begin = 0;  // ns of std::chrono::steady_clock
  int64_t wall_ns = 0;
  std::vector<PagingTime> paging;
  std::vector<ActionTime> actions;  // all actions of one worker, then of the next, in order
};

/// Threads: one caller at a time; abort() from any thread.
class Runtime {
 public:
  static constexpr int64_t kAllProcesses = -1;
  /// Starts the workers of one of Executable::stage_processes; they sleep until run(). Work of other processes arrives
  /// by messages, which the backend waits for. kAllProcesses: starts the workers of all processes here.
  Runtime(const exe::Executable& executable, Backend& backend, int64_t process = kAllProcesses);
  ~Runtime();
  Runtime(const Runtime&) = delete;

  /// Runs one step. Rethrows the first worker's error with worker, stage and micro-batch as context; Other exceptions
  /// than Abele's become E0601 with the same text. poll is called about every 50 ms while waiting; if it returns true,
  /// the step is aborted and E0602 thrown. run() can be called again after any error. Throws E0607 in a forked child.
  const StepReport& run(const std::function<bool()>& poll = {});
  void abort();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace abele::runtime

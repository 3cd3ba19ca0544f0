// For users of the library: end a run after a complete step when the system sends a signal to end it.
//
//   abele::StopOnSignal stop;
//   while (step < last && !stop) { model(batch); ++step; }
//   abele::saveCheckpoint("run", model, step, &loader);
#pragma once

#include <csignal>
#include <vector>

#include "abele/export.h"

namespace abele {

/// While an object of this class lives, the signals do not end the process. The object notes them, and the program
/// checks for them. A second signal to the same process acts as it would without this object. The end of the last
/// object restores the previous handlers. Threads: owner only, except requested() and signal(), which are safe.
/// Throws, without any change: E0708 for a number that is not a signal, or that cannot be caught.
class ABELE_API StopOnSignal {
 public:
  explicit StopOnSignal(const std::vector<int>& signals = {SIGTERM, SIGINT});
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

  /// Returns true if the process was asked to stop since this object was made.
  bool requested() const { return signal() != 0; }
  explicit operator bool() const { return requested(); }
  /// Returns true if any of the processes was asked to stop. All processes call this at the same step and get the same
  /// result. The processes are connected by the first step of a training with several processes, or by joinProcesses().
  /// Before that, the result is requested() of this process.
  /// Throws: E0606 if another process ended.   Threads: one, and no call of a model at the same time.
  bool agreed() const;
  /// The number of the signal that was noted; 0: none.
  int signal() const;

 private:
  struct Former {
    int signal = 0;
    struct sigaction action = {};
  };
  std::vector<Former> former_;
};

}  // namespace abele

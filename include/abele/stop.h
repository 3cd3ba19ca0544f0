// For users of the library: end a run after a complete step when the system asks it to end.
//
//   abele::StopOnSignal stop;
//   while (step < last && !stop) { model(batch); ++step; }
//   abele::saveCheckpoint("run", model, step, &loader);
#pragma once

#include <csignal>
#include <vector>

#include "abele/export.h"

namespace abele {

/// While an object of this class lives, the signals do not end the process: they are noted, and the program checks for
/// them. A second signal to the same process acts as it does without this. The end of the last object restores
/// the previous handlers. Threads: owner only, except requested() and signal(), which are safe.
/// Throws: E0708 for a number that is no signal that can be caught; nothing is changed then.
class ABELE_API StopOnSignal {
 public:
  explicit StopOnSignal(const std::vector<int>& signals = {SIGTERM, SIGINT});
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

  /// Was the process asked to stop since this was made?
  bool requested() const { return signal() != 0; }
  explicit operator bool() const { return requested(); }
  /// Was any of the processes asked to stop? All of them call this at the same step and get the same answer. A training
  /// of several processes connects them at its first step, or joinProcesses() does; before that, each is alone.
  /// Throws: E0606 if another one ended.   Threads: one, and no call of a model at the same time.
  bool agreed() const;
  /// The number of the signal; 0: none came.
  int signal() const;

 private:
  struct Former {
    int signal = 0;
    struct sigaction action = {};
  };
  std::vector<Former> former_;
};

}  // namespace abele

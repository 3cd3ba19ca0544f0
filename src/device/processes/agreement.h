// Checks that the processes that train one model still have the same weights and optimizer.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "collective/peers.h"
#include "device/backend.h"
#include "exe/executable.h"

namespace abele::device {

/// The value of a persistent slot of this process, in the host's memory.
using HostValue = std::function<at::Tensor(int32_t slot)>;

/// Records what the host has written to this process's device since the last comparison. Threads: between steps the
/// caller's, in a step one worker's.
class Agreement {
 public:
  /// stage_process: the index of this process in Executable::stage_processes.
  Agreement(const exe::Executable& executable, int64_t stage_process, HostValue value)
      : executable_(executable), stage_process_(stage_process), value_(std::move(value)) {}

  void setHyper(int group, const std::string& name, double value) { hypers_[{group, name}] = value; }
  /// Called when the host wrote weights or optimizer state.
  void noteUpload() { has_upload_ = true; }
  /// Sets the start of this step's stochastic rounding. It must be the same in all processes, because all of them
  /// update.
  void setRounding(const RoundingPosition& position) { rounding_ = position; }

  /// Compares with the other processes: hyper-parameters and rounding always, weights and state if the host of any
  /// process has written some. All processes call it at the same place of a step. Throws E0713 in all of them, and the
  /// errors of Peers.
  void check(collective::PeerMessages& peers);
  /// A hash of all hyper-parameters.
  uint64_t hyperHash() const;

 private:
  void checkWeights(collective::PeerMessages& peers) const;

  const exe::Executable& executable_;
  const int64_t stage_process_;
  const HostValue value_;
  std::map<std::pair<int, std::string>, double> hypers_;
  RoundingPosition rounding_;
  bool has_upload_ = false;
};

}  // namespace abele::device

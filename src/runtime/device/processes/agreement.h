// Whether the processes that train one model still have the same weights and optimizer.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "exe/executable.h"
#include "runtime/collective/peers.h"
#include "runtime/device/backend.h"

namespace abele::runtime {

/// What a persistent slot of this process holds, in the host's memory.
using HostValue = std::function<at::Tensor(int32_t slot)>;

/// What the host gave this process's device since the processes last compared. Threads: the caller's between steps, one
/// worker's in a step.
class Agreement {
 public:
  /// stage_process: which of Executable::stage_processes this is.
  Agreement(const exe::Executable& executable, int64_t stage_process, HostValue value)
      : executable_(executable), stage_process_(stage_process), value_(std::move(value)) {}

  void setHyper(int group, const std::string& name, double value) { hypers_[{group, name}] = value; }
  /// The host wrote weights or optimizer state.
  void noteUpload() { has_upload_ = true; }
  /// Where the rounding at random of this step starts from: all processes update, and must round alike.
  void setRounding(const RoundingPosition& position) { rounding_ = position; }

  /// Compares with the other processes: hyper-parameters and rounding always, weights and state where one of them
  /// wrote some. All processes call it at the same place of a step. Throws E0713 in all of them, or what Peers throws.
  void check(PeerMessages& peers);
  /// Of all hyper-parameters.
  uint64_t hyperHash() const;

 private:
  void checkWeights(PeerMessages& peers) const;

  const exe::Executable& executable_;
  const int64_t stage_process_;
  const HostValue value_;
  std::map<std::pair<int, std::string>, double> hypers_;
  RoundingPosition rounding_;
  bool has_upload_ = false;
};

}  // namespace abele::runtime

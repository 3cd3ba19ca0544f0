// Whether the processes that train one model still have the same weights and optimizer.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "runtime/collective/peers.h"
#include "runtime/device/aten/arena.h"

namespace abele::runtime {

/// What the host gave this process's device since the processes last compared. Threads: the caller's between steps, one
/// worker's in a step.
class Agreement {
 public:
  Agreement(const exe::Executable& executable, const SlotTable& slots) : executable_(executable), slots_(slots) {}

  void setHyper(int group, const std::string& name, double value) { hypers_[{group, name}] = value; }
  /// The host wrote weights or optimizer state.
  void noteUpload() { has_upload_ = true; }

  /// Compares with the other processes: hyper-parameters always, weights and state where one of them wrote some. All
  /// processes call it at the same place of a step. Throws E0713 in all of them, or what Peers throws.
  void check(PeerMessages& peers);
  /// Of all hyper-parameters.
  uint64_t hyperHash() const;

 private:
  void checkWeights(PeerMessages& peers) const;

  const exe::Executable& executable_;
  const SlotTable& slots_;
  std::map<std::pair<int, std::string>, double> hypers_;
  bool has_upload_ = false;
};

}  // namespace abele::runtime

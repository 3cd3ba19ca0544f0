// Checks that the processes that hold the stages of one replica do the same step on the same numbers.
#pragma once

#include <map>
#include <vector>

#include "collective/peers.h"
#include "device/backend.h"

namespace abele::device {

/// Does nothing if each replica is in one process. At the start of a step each process announces a hash of the state
/// from which it starts. It reads the announcements of the others only before its last updates, so it need not wait for
/// them before that. Threads: the caller's between steps, agree() of one worker.
class StepAgreement {
 public:
  StepAgreement(const exe::Executable& executable, const DeviceOptions& options)
      : executable_(executable),
        rounds_(options.stochastic_rounding),
        peers_(executable.stage_processes > 1 ? options.peers : nullptr) {}

  /// Called when the host wrote an external. Ignores externals that only one process has.
  void noteUpload(int32_t external, const at::Tensor& host);
  void noteInputs(const std::vector<at::Tensor>& inputs);
  /// Called when a step begins. hypers: hash of the optimizer's numbers. Throws E0606.
  void begin(uint64_t hypers, const at::Generator& random, const RoundingPosition& rounding);
  /// Called when this process has done all of a step except the last updates. Returns when all processes have reached
  /// this point. Throws E0713 in all of them if they do different things or have different numbers, and the errors of
  /// Peers::agree.
  void agree();

 private:
  bool isInSeveral(const exe::External& external) const;

  const exe::Executable& executable_;
  bool rounds_;                               // whether rounding is stochastic
  std::shared_ptr<collective::Peers> peers_;  // null: nothing to compare
  std::map<int32_t, uint64_t> uploads_;       // by external: hash of what the host wrote last
  uint64_t inputs_ = 0;
};

}  // namespace abele::device

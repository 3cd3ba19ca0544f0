// Whether the processes that hold the stages of one replica do the same step, on the same numbers.
#pragma once

#include <map>
#include <vector>

#include "runtime/collective/peers.h"
#include "runtime/device/backend.h"

namespace abele::runtime {

/// Does nothing where no replica lies in several processes. Each process tells the others what its step starts from
/// when it begins, and looks at what they told before its last updates: nothing waits for it in between. Threads: the
/// caller's between steps, agree() of one worker.
class StepAgreement {
 public:
  StepAgreement(const exe::Executable& executable, const DeviceOptions& options)
      : executable_(executable),
        rounds_(options.stochastic_rounding),
        peers_(executable.stage_processes > 1 ? options.peers : nullptr) {}

  /// The host wrote an external. Those with copies in several processes count.
  void noteUpload(int32_t external, const at::Tensor& host);
  void noteInputs(const std::vector<at::Tensor>& inputs);
  /// A step begins. hypers: hash of the optimizer's numbers. Throws E0606.
  void begin(uint64_t hypers, const at::Generator& random, const RoundingPosition& rounding);
  /// All this process does before the last updates of a step is done. Returns when all processes are as far. Throws
  /// E0713 in all of them where they do other things or work on other numbers, and what Peers::agree throws.
  void agree();

 private:
  bool isInSeveral(const exe::External& external) const;

  const exe::Executable& executable_;
  bool rounds_;                          // at random
  std::shared_ptr<Peers> peers_;         // null: nothing to compare
  std::map<int32_t, uint64_t> uploads_;  // by external: what the host wrote last
  uint64_t inputs_ = 0;
};

}  // namespace abele::runtime

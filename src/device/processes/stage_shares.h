// Shares results, weights and state between steps, among the processes that hold the stages of one replica.
#pragma once

#include <vector>

#include "collective/peers.h"
#include "device/backend.h"
#include "device/processes/agreement.h"

namespace abele::device {

/// Processes [t * S, t * S + S) together hold the stages of some replicas, with S = Executable::stage_processes. All
/// processes call the same functions in one order. Throws the errors of Peers. Threads: the caller's, between steps.
class StageShares {
 public:
  StageShares(const exe::Executable& executable, const DeviceOptions& options);
  /// Whether several processes hold the stages of a replica.
  bool isNeeded() const { return executable_.stage_processes > 1; }
  /// ofReplica(): the processes that hold the other stages of this one's replicas, by stage process. ofStages(): those
  /// that hold the same stages of other replicas. Null without such processes.
  collective::PeerMessages* ofReplica() const { return replica_.get(); }
  collective::PeerMessages* ofStages() const { return stages_.get(); }
  /// The value of a persistent slot, in all processes; `own` reads it in the process that holds it. Throws E0713 if a
  /// process does something else.
  at::Tensor value(int32_t slot, const HostValue& own) const;
  /// Sends the results that a step wrote in one process to the processes that read them (DeviceOptions::readers).
  /// outputs: as DeviceBackend::bindOutputs.
  void shareResults(const std::vector<std::vector<at::Tensor>>& outputs) const;

 private:
  /// reader: as in DeviceOptions::readers.
  void shareResults(const std::vector<std::vector<at::Tensor>>& outputs, int64_t owner, int64_t reader) const;
  bool takesPart(int64_t owner, int64_t reader) const;
  void share(const at::Tensor& bytes, int64_t owner, int64_t reader) const;

  const exe::Executable& executable_;
  std::shared_ptr<collective::Peers> peers_;  // all processes
  std::unique_ptr<collective::PeerMessages> replica_, stages_;
  int64_t own_;
  std::vector<int32_t> owners_;   // by output: the process whose worker writes it; -1: no worker does
  std::vector<int32_t> readers_;  // by output of one replica
  bool is_for_all_ = true;        // all processes read each result
};

}  // namespace abele::device

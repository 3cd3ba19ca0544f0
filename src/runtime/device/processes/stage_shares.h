// What the processes that hold the stages of one replica give each other between steps: results, weights, state.
#pragma once

#include <vector>

#include "runtime/collective/peers.h"
#include "runtime/device/backend.h"
#include "runtime/device/processes/agreement.h"

namespace abele::runtime {

/// Processes [t * S, t * S + S) hold the stages of the replicas of t, S = Executable::stage_processes. All processes
/// call the same functions in one order. Throws what Peers throws. Threads: the caller's, between steps.
class StageShares {
 public:
  StageShares(const exe::Executable& executable, const DeviceOptions& options);
  /// Are there such processes?
  bool isNeeded() const { return executable_.stage_processes > 1; }
  /// The processes that hold the other stages of this one's replicas, by stage process; and those that hold the same
  /// stages of other replicas. Null where there are no other processes.
  PeerMessages* ofReplica() const { return replica_.get(); }
  PeerMessages* ofStages() const { return stages_.get(); }
  /// What the process that holds a persistent slot has there, in all of them; own: where it is this one. Throws E0713
  /// where one of them does something else.
  at::Tensor value(int32_t slot, const HostValue& own) const;
  /// The results that a step has written in one process, in those that read them (DeviceOptions::readers). outputs: as
  /// DeviceBackend::bindOutputs.
  void shareResults(const std::vector<std::vector<at::Tensor>>& outputs) const;

 private:
  /// reader: of DeviceOptions::readers.
  void shareResults(const std::vector<std::vector<at::Tensor>>& outputs, int64_t owner, int64_t reader) const;
  bool takesPart(int64_t owner, int64_t reader) const;
  void share(const at::Tensor& bytes, int64_t owner, int64_t reader) const;

  const exe::Executable& executable_;
  std::shared_ptr<Peers> peers_;  // all
  std::unique_ptr<PeerMessages> replica_, stages_;
  int64_t own_;
  std::vector<int32_t> owners_;   // by output: the process whose worker writes it; -1: nobody does
  std::vector<int32_t> readers_;  // by output of a replica
  bool is_for_all_ = true;        // each result is
};

}  // namespace abele::runtime

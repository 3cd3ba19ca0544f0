// Chooses the random numbers with which a call rounds. They depend on what the call computes and not on where it runs.
#pragma once

#include <cstdint>
#include <vector>

#include "device/backend.h"
#include "exe/executable.h"
#include "kernels/rounding.h"

namespace abele::device {

/// The seeds of all calls. Counts calls without messages, and identifies updates by the names of the tensors that they
/// write. Rounding is therefore the same if replicas divide the updates (exe::ShardingRules), and in several processes.
class RoundingPlaces {
 public:
  /// process: as in Executable::globalMicroBatch.
  RoundingPlaces(const exe::Executable& executable, int64_t process);
  /// The seed of call i of an action's segment.
  kernels::RoundingSeed of(const RoundingPosition& step, const runtime::ActionContext& action, std::size_t i) const;

 private:
  struct Segment {
    uint64_t replica;              // index among the replicas of all processes
    std::vector<uint64_t> places;  // by call
  };

  const exe::Executable& executable_;
  std::vector<Segment> segments_;
};

}  // namespace abele::device

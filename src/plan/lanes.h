// Micro-batches side by side: which programs may have lanes, and what each lane has of its own (docs/executable.md).
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"
#include "plan/liveness.h"

namespace abele::plan {

/// Why the micro-batches of a graph must be worked on one by one; empty: they may lie side by side, and every number
/// keeps its bits.
std::string whyNoLanes(const ir::Graph& graph);
/// By buffer: do its contents depend on the micro-batch? Those of others are made once for all lanes.
std::vector<bool> varyingBuffers(const ir::Graph& graph, const Liveness& liveness);

/// What micro-batches side by side have in common.
struct LaneSharing {
  std::vector<bool> varies;  // by base value: each lane has its own
  /// By node: is one call over all lanes likely to take the place of one each? An estimate by layouts and sizes of what
  /// exe/build and the devices join; the devices' trials have the last word.
  std::vector<bool> joins;
};
LaneSharing sharingOfLanes(const ir::Graph& graph);

}  // namespace abele::plan

// Micro-batches side by side: which programs may have lanes, and what each lane has of its own (docs/executable.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "plan/liveness.h"

namespace abele::plan {

/// Why the micro-batches of a graph must be worked on one by one; empty: they may lie side by side, and every number
/// keeps its bits.
std::string whyNoLanes(const ir::Graph& graph);
/// By buffer: do its contents depend on the micro-batch? Those of others are made once for all lanes.
std::vector<bool> varyingBuffers(const ir::Graph& graph, const Liveness& liveness);

/// Types that a trial on a device has numbers for; indices must be valid ones.
bool isOfNumbers(DType dtype);
/// Elements from one row of dimension 0 to the next; a single row's stride says nothing. Requires: a dimension.
int64_t rowStride(const Type& type);
/// Do the rows fill the memory of a lane, so that those of the next one follow without a gap? Rows with gaps are
/// nothing that an operator wrote.
bool leavesNoGap(const Type& type, int64_t lane_bytes);

/// Does an operator add up, or the like, over the rows of a micro-batch? rank: dimensions of its first operand.
bool reducesRows(std::string_view op, const std::vector<Arg>& args, int64_t rank);

/// What micro-batches side by side have in common.
struct LaneSharing {
  std::vector<bool> varies;  // by base value: each lane has its own
  /// By node: is one call over all lanes likely to take the place of one each? An estimate by layouts and sizes of what
  /// exe/build and the devices join; the devices' trials have the last word.
  std::vector<bool> joins;
};
LaneSharing sharingOfLanes(const ir::Graph& graph);

}  // namespace abele::plan

// A program as a chain of pieces that no stage boundary may divide, with what each piece costs. From a graph that was
// lowered as one stage; auto_split.cc chooses among the boundaries.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"
#include "plan/simulate.h"

namespace abele::plan {

struct Piece {
  ir::NodeId first = 0;         // forward nodes from this id up to the next piece's belong here
  int32_t first_position = -1;  // in Graph::nodes: the first and last forward operator
  int32_t last_position = -1;
  int64_t forward_ns = 0, backward_ns = 0, update_ns = 0;  // backward_ns: all of it
  int64_t persistent_bytes = 0;
  int64_t kept_bytes = 0;       // of forward, until backward
  int64_t transient_bytes = 0;  // of the largest operator
  /// At the boundary in front: values of earlier pieces that this or a later one reads in forward; and those among them
  /// that backward does not keep anyway.
  int64_t crossing_bytes = 0, crossing_only_bytes = 0;
  int64_t returning_bytes = 0;  // there too: what backward of this or a later piece makes for that of earlier ones
};

struct SplitChain {
  bool training = false;
  std::vector<Piece> pieces;
  /// late_ns[b][e]: time of backward in pieces [0, e) on which nothing before piece b waits. Empty: none is known.
  std::vector<std::vector<int64_t>> late_ns;

  /// Pieces [begin, end) as one stage. What crosses a boundary is read once from memory by either side.
  StageCost cost(size_t begin, size_t end) const;
  StageMemory memory(size_t begin, size_t end) const;
};

/// Requires: form kLowered (training, with Node::forward) or kStaged, one stage.
/// A boundary is left out where another one nearby has fewer bytes to hand over: nearby is 1/64 of the mean work of
/// `parts` parts, so that balance loses no more than that. None is inside the region from the first to the last node
/// that touches an external written by forward: only one stage may look at it.
/// measured: times of capture where there are some, instead of estimates; differs from run to run.
SplitChain splitChain(const ir::Graph& graph, int parts, bool measured = false);

}  // namespace abele::plan

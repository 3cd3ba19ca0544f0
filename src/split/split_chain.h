// A program as a chain of pieces that no stage boundary may divide, with the costs of each piece. It is made of a graph
// that was lowered as one stage; auto_split.cc chooses among the boundaries.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"
#include "schedule/simulate.h"

namespace abele::split {

struct Piece {
  ir::NodeId first = 0;         // forward nodes with ids from this one up to the next piece's belong to it
  int32_t first_position = -1;  // positions in Graph::nodes of the first and last forward operator
  int32_t last_position = -1;
  int64_t forward_ns = 0, backward_ns = 0, update_ns = 0;  // backward_ns includes weight gradients
  int64_t persistent_bytes = 0;
  int64_t kept_bytes = 0;       // bytes that forward keeps until backward
  int64_t transient_bytes = 0;  // bytes of the largest operator
  /// Values that cross the boundary before this piece: those of earlier pieces that this or a later piece reads in
  /// forward. The second count has only those that backward does not keep anyway.
  int64_t crossing_bytes = 0, crossing_only_bytes = 0;
  int64_t returning_bytes = 0;  // across the same boundary: gradients that backward makes for earlier pieces
};

struct SplitChain {
  bool training = false;
  std::vector<Piece> pieces;
  /// late_ns[b][e]: time of backward in pieces [0, e) that nothing before piece b waits for. Empty: unknown.
  std::vector<std::vector<int64_t>> late_ns;

  /// Pieces [begin, end) as one stage. Each side of a boundary reads the values that cross it once from memory.
  schedule::StageCost cost(size_t begin, size_t end) const;
  schedule::StageMemory memory(size_t begin, size_t end) const;
};

/// Makes the chain of a graph.
/// Requires: form kLowered (training, with Node::forward) or kStaged, one stage.
/// A boundary is left out if one nearby has fewer bytes to hand over. Nearby means within 1/64 of the mean work of
/// `parts` parts, so balance loses no more than that. Nodes from the first to the last one that touch an external
/// written by forward stay together, because only one stage may read it.
/// measured: uses times of capture instead of estimates if there are any; these differ from run to run.
SplitChain splitChain(const ir::Graph& graph, int parts, bool measured = false);

}  // namespace abele::split

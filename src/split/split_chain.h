// A program as a chain of pieces that no stage boundary may divide, with the costs of each piece. It is made of a graph
// that was lowered as one stage; auto_split.cc chooses among the boundaries.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"
#include "schedule/simulate.h"

namespace abele::split {

struct Piece {
  ir::NodeId first = 0;         // first forward node; the piece has all forward nodes with ids up to the next piece's
  int32_t first_position = -1;  // positions in Graph::nodes of the first and last forward operator
  int32_t last_position = -1;
  int64_t forward_ns = 0, backward_ns = 0, update_ns = 0;  // backward_ns includes weight gradients
  int64_t persistent_bytes = 0;
  int64_t kept_bytes = 0;       // bytes that forward keeps until backward
  int64_t transient_bytes = 0;  // bytes of the largest operator
  /// Bytes of values that cross the boundary before this piece: values of earlier pieces that this or a later piece
  /// reads in forward. The second number leaves out values that backward keeps.
  int64_t crossing_bytes = 0, crossing_only_bytes = 0;
  int64_t returning_bytes = 0;  // bytes of gradients across the same boundary, which backward makes for earlier pieces
};

struct SplitChain {
  bool training = false;
  std::vector<Piece> pieces;
  /// late_ns[b][e]: time of the part of backward in pieces [0, e) whose results no piece before b needs. Empty:
  /// unknown.
  std::vector<std::vector<int64_t>> late_ns;

  /// The cost of pieces [begin, end) as one stage. Includes one read of the values that cross its boundaries.
  schedule::StageCost cost(size_t begin, size_t end) const;
  schedule::StageMemory memory(size_t begin, size_t end) const;
};

/// Makes the chain of a graph.
/// Requires: form kLowered (training, with Node::forward) or kStaged, one stage.
/// Leaves out a boundary if fewer bytes cross another one nearby: within 1/64 of the mean work of `parts` parts, so
/// balance loses no more than that. If forward writes an external, all nodes from its first to its last use stay
/// together, because only one stage may read it.
/// measured: uses times of capture instead of estimates if there are any; these differ from run to run.
SplitChain splitChain(const ir::Graph& graph, int parts, bool measured = false);

}  // namespace abele::split

// What transforms of a graph share: positions, renaming of operands, removal. Used by passes/.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace abele::ir {

/// Index in graph.nodes by node id; kNone for ids that no node has.
std::vector<int32_t> positionsById(const Graph& graph);

/// Makes every operand and output v read new_id[v]. Writes keep naming bases: renaming a base renames `before` too.
void renameOperands(Graph& graph, const std::vector<ValueId>& new_id);

/// Fills `node`, which has its id, with a view of `base` that has the type and place of `like`. Requires: `base` is a
/// base that is laid out as the base of `like`. Returns: the view.
ValueId makeView(Graph& graph, Node& node, ValueId like, ValueId base);

/// Puts `first` before all nodes, and behind[i] behind the node at position i. Takes them.
void insertNodes(Graph& graph, std::vector<Node>& first, std::vector<std::vector<Node>>& behind);

/// Leaves the place of a removed value, so that the ids of the others stay.
void forgetValue(Graph& graph, ValueId v);

/// Removes the nodes whose flag (by position) is set, and forgets what they made.
void removeNodes(Graph& graph, const std::vector<bool>& remove);

/// Removes views that nothing reads, and those that only such views read. Returns whether there were any.
bool removeUnreadViews(Graph& graph);

/// The node that makes the memory of a value (views are looked through), or nullptr for an input. Pointers are into
/// graph.nodes.
class Makers {
 public:
  explicit Makers(Graph& graph) : graph_(graph), position_(positionsById(graph)) {}
  Node* of(ValueId v) const {
    NodeId def = graph_.values[graph_.baseOf(v)].def;
    return def == kNone ? nullptr : &graph_.nodes[position_[def]];
  }

 private:
  Graph& graph_;
  std::vector<int32_t> position_;
};

/// "encoder/layer.3 (train.py:88), aten::add.Tensor -> f32[16,512]", with what is known, for messages.
std::string describe(const Graph& graph, const Node& node);

}  // namespace abele::ir

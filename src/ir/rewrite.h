// Functions for passes that change a graph: positions, renaming of operands, removal.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace abele::ir {

/// The index in graph.nodes of each node id; kNone for ids without a node.
std::vector<int32_t> positionsById(const Graph& graph);

/// Replaces every operand and output v by new_id[v], and in writes the base `before`.
void renameOperands(Graph& graph, const std::vector<ValueId>& new_id);

/// A node with a new id that belongs to the stage, direction, block and source of another. The caller adds it.
Node nodeBeside(Graph& graph, std::string op, const Node& like);

/// Turns `node`, which has its id already, into a view of `base` with the type and place of `like`. Requires: `base` is
/// a base with the layout of the base of `like`. Returns: the view.
ValueId makeView(Graph& graph, Node& node, ValueId like, ValueId base);
/// The same for a type and an offset in elements of the type.
ValueId makeView(Graph& graph, Node& node, const Type& type, int64_t offset, ValueId base);

/// Inserts `first` before all nodes, and behind[i] after the node at position i. Moves the nodes out of both arguments.
void insertNodes(Graph& graph, std::vector<Node>& first, std::vector<std::vector<Node>>& behind);

/// Clears a value but keeps its place, so that the other ids stay valid.
void forgetValue(Graph& graph, ValueId v);

/// Removes the nodes whose flag (by position) is set, and clears the values that they made.
void removeNodes(Graph& graph, const std::vector<bool>& remove);

/// Removes views that nothing reads, and views that only such views read. Returns whether there were any.
bool removeUnreadViews(Graph& graph);

/// Finds the node that makes the memory of a value, looking through views; nullptr for an input. Pointers are into
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

/// "encoder/layer.3 (train.py:88), aten::add.Tensor -> f32[16,512]", for messages. Unknown parts are left out.
std::string describe(const Graph& graph, const Node& node);

}  // namespace abele::ir

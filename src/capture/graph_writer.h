// Adds nodes and values to the graph of a recording, and remembers which values may differ between micro-batches.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "capture/attribution.h"
#include "ir/graph.h"

namespace abele::capture {

/// Whether the operator only allocates memory and writes nothing into it.
bool isAllocation(std::string_view op);

/// Threads: owner only.
class GraphWriter {
 public:
  /// attributes_nodes: backward nodes name their forward node.
  GraphWriter(ir::Graph* graph, bool attributes_nodes) : graph_(*graph), attributes_nodes_(attributes_nodes) {}

  ir::Graph& graph() { return graph_; }
  const ir::Graph& graph() const { return graph_; }

  ir::Node& addNode(std::string op, Where where);
  /// Adds a node that overwrites the part `view` of the base value `before`, which begins where it does, with `value`.
  /// Returns the new base value.
  ir::ValueId addCopy(ir::ValueId before, Type view, ir::ValueId value, const Where& where, bool varies);
  /// Adds a node that copies the value into memory of its own. Returns the copy.
  ir::ValueId addClone(ir::ValueId value, const Where& where);
  /// Adds a base value that `node` makes.
  ir::ValueId addValue(const Type& type, ir::NodeId node, bool varies);
  ir::ValueId addInput(const Type& type, ir::InputKind kind, int32_t external, const std::string& name, bool varies);
  /// Whether the value, or its base if it is a view, may differ between micro-batches.
  bool varies(ir::ValueId value) const { return varies_.at(graph_.baseOf(value)); }
  void setVaries(ir::ValueId base, bool varies);
  /// varies(), by base value.
  const std::vector<bool>& allVarying() const { return varies_; }
  /// The node that made the memory of a value; null for inputs and for kNone.
  const ir::Node* makerOf(ir::ValueId value) const;

 private:
  ir::Graph& graph_;
  const bool attributes_nodes_;
  std::vector<bool> varies_;  // by base value
};

}  // namespace abele::capture

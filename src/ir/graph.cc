#include "ir/graph.h"

#include <algorithm>
#include <tuple>

namespace abele::ir {

bool Node::operator==(const Node& other) const {
  auto fields = [](const Node& n) {
    return std::tie(n.id, n.op, n.args, n.results, n.writes, n.is_view, n.direction, n.block, n.forward, n.stage,
                    n.phase, n.random_draws, n.random_offset, n.normals, n.draws_vary, n.source, n.scope);
  };
  return fields(*this) == fields(other);
}

ValueId Graph::addValue(Type type, NodeId def) {
  ValueId id = static_cast<ValueId>(values.size());
  values.push_back({.type = std::move(type), .def = def, .base = id});
  return id;
}

ValueId Graph::addView(Type type, NodeId def, ValueId base, int64_t offset) {
  ValueId id = static_cast<ValueId>(values.size());
  values.push_back({.type = std::move(type), .def = def, .base = base, .offset = offset});
  return id;
}

ValueId Graph::addInput(Type type, InputKind kind, int32_t external, std::string value_name) {
  ValueId id = addValue(std::move(type), kNone);
  values[id].name = std::move(value_name);
  inputs.push_back({id, kind, external});
  return id;
}

bool Graph::operator==(const Graph& other) const {
  auto fields = [](const Graph& g) {
    return std::tie(g.name, g.training, g.values, g.nodes, g.inputs, g.outputs, g.externals, g.blocks, g.stages,
                    g.random_draws, g.normals);
  };
  return fields(*this) == fields(other);
}

// The stored limit makes this constant time. A node that was put into the vector by hand counts if it is the last.
NodeId Graph::nextNodeId() const {
  return nodes.empty() ? node_id_limit : std::max(node_id_limit, nodes.back().id + 1);
}

Node& Graph::addNode(std::string op) {
  const NodeId id = takeNodeId();
  Node& node = nodes.emplace_back();
  node.id = id;
  node.op = std::move(op);
  return node;
}

bool reaches(const Graph& graph, ValueId from, ValueId to) {
  if (from == to) return true;
  std::vector<bool> reached(graph.values.size(), false);
  reached[from] = true;
  for (const Node& node : graph.nodes) {
    bool reads = false;
    forEachOperand(node, [&](ValueId v) { reads = reads || reached[v]; });
    // A write sees a region of a base but names only the base; `from` may be a view of that base.
    for (const Write& w : node.writes) reads = reads || w.before == graph.baseOf(from);
    if (reads) forEachResult(node, [&](ValueId v) { reached[v] = true; });
  }
  return reached[to];
}

}  // namespace abele::ir

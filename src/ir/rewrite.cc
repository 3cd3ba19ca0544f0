#include "ir/rewrite.h"

#include <utility>

#include "base/cat.h"

namespace abele::ir {

std::vector<int32_t> positionsById(const Graph& graph) {
  std::vector<int32_t> positions;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    size_t id = static_cast<size_t>(graph.nodes[i].id);
    if (positions.size() <= id) positions.resize(id + 1, kNone);
    positions[id] = static_cast<int32_t>(i);
  }
  return positions;
}

void renameOperands(Graph& graph, const std::vector<ValueId>& new_id) {
  for (Node& node : graph.nodes) {
    for (Arg& arg : node.args) forEachId(arg, [&](int64_t& id) { id = new_id[id]; });
    for (Write& write : node.writes) write.before = new_id[write.before];
  }
  for (Output& output : graph.outputs) output.value = new_id[output.value];
}

Node nodeBeside(Graph& graph, std::string op, const Node& like) {
  Node node;
  node.id = graph.takeNodeId();
  node.op = std::move(op);
  node.direction = like.direction;
  node.block = like.block;
  node.forward = like.forward;
  node.stage = like.stage;
  node.phase = like.phase;
  node.source = like.source;
  node.scope = like.scope;
  return node;
}

ValueId makeView(Graph& graph, Node& node, ValueId like, ValueId base) {
  const Value value = graph.values[static_cast<size_t>(like)];
  return makeView(graph, node, value.type, value.offset, base);
}

ValueId makeView(Graph& graph, Node& node, const Type& type, int64_t offset, ValueId base) {
  const bool same_dtype = graph.values[static_cast<size_t>(base)].type.dtype == type.dtype;
  node.op = same_dtype ? "aten::as_strided" : "aten::view.dtype";
  node.args = {Arg::id(base)};
  if (same_dtype) {
    node.args.push_back(Arg::intList(type.sizes));
    node.args.push_back(Arg::intList(type.strides));
    node.args.push_back(Arg::integer(offset));
  } else {
    node.args.push_back(Arg::integer(static_cast<int64_t>(type.dtype)));
  }
  node.is_view = true;
  const ValueId view = graph.addView(type, node.id, base, offset);
  node.results = {{view}};
  return view;
}

void insertNodes(Graph& graph, std::vector<Node>& first, std::vector<std::vector<Node>>& behind) {
  std::vector<Node> nodes = std::move(first);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    nodes.push_back(std::move(graph.nodes[i]));
    std::move(behind[i].begin(), behind[i].end(), std::back_inserter(nodes));
  }
  graph.nodes = std::move(nodes);
}

void forgetValue(Graph& graph, ValueId v) { graph.values[v] = Value{.base = v}; }

void removeNodes(Graph& graph, const std::vector<bool>& remove) {
  size_t kept = 0;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (remove[i]) {
      forEachResult(graph.nodes[i], [&](ValueId v) { forgetValue(graph, v); });
    } else {
      if (kept != i) graph.nodes[kept] = std::move(graph.nodes[i]);
      ++kept;
    }
  }
  graph.nodes.resize(kept);
}

// Walking backwards meets readers before view nodes, so one walk finds whole chains of unread views.
bool removeUnreadViews(Graph& graph) {
  std::vector<bool> is_read(graph.values.size(), false), remove(graph.nodes.size(), false);
  for (const Output& output : graph.outputs) is_read[static_cast<size_t>(output.value)] = true;
  bool any = false;
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    remove[i] = node.is_view;
    forEachResult(node, [&](ValueId v) { remove[i] = remove[i] && !is_read[static_cast<size_t>(v)]; });
    any = any || remove[i];
    if (!remove[i]) forEachOperand(node, [&](ValueId v) { is_read[static_cast<size_t>(v)] = true; });
  }
  if (any) removeNodes(graph, remove);
  return any;
}

std::string describe(const Graph& graph, const Node& node) {
  std::string where = node.scope;
  if (!node.source.empty()) where += where.empty() ? node.source : cat(" (", node.source, ")");
  std::string made = node.op;
  bool first = true;
  forEachResult(node, [&](ValueId v) {
    if (first) made += cat(" -> ", graph.values[v].type.str());
    first = false;
  });
  return where.empty() ? made : cat(where, ", ", made);
}

}  // namespace abele::ir

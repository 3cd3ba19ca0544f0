#include "capture/graph_writer.h"

#include <utility>

#include <c10/core/MemoryFormat.h>

namespace abele::capture {

bool isAllocation(std::string_view op) { return op.starts_with("aten::empty") || op.starts_with("aten::new_empty"); }

ir::Node& GraphWriter::addNode(std::string op, Where where) {
  ir::Node& node = graph_.addNode(std::move(op));
  node.direction = where.direction;
  node.block = where.block;
  if (attributes_nodes_ && where.direction == ir::Direction::kBackward) node.forward = where.forward;
  node.scope = std::move(where.scope);
  node.source = std::move(where.source);
  return node;
}

ir::ValueId GraphWriter::addCopy(ir::ValueId before, Type view, ir::ValueId value, const Where& where, bool varies) {
  const Type type = graph_.values[before].type;
  const ir::ValueId after = addValue(type, graph_.nextNodeId(), varies);
  ir::Node& node = addNode("aten::copy_", where);
  node.args = {Arg::id(before), Arg::id(value), Arg::boolean(false)};
  node.results = {{ir::kNone}};
  node.writes = {{.arg = 0, .view = std::move(view), .before = before, .after = after}};
  return after;
}

ir::ValueId GraphWriter::addClone(ir::ValueId value, const Where& where) {
  const Type type = graph_.values[value].type;
  const ir::ValueId clone = addValue(contiguousType(type.dtype, type.sizes), graph_.nextNodeId(), varies(value));
  ir::Node& node = addNode("aten::clone", where);
  node.args = {Arg::id(value), Arg::integer(static_cast<int64_t>(c10::MemoryFormat::Contiguous))};
  node.results = {{clone}};
  return clone;
}

ir::ValueId GraphWriter::addValue(const Type& type, ir::NodeId node, bool varies) {
  const ir::ValueId value = graph_.addValue(type, node);
  setVaries(value, varies);
  return value;
}

ir::ValueId GraphWriter::addInput(const Type& type, ir::InputKind kind, int32_t external, const std::string& name,
                                  bool varies) {
  const ir::ValueId value = graph_.addInput(type, kind, external, name);
  setVaries(value, varies);
  return value;
}

void GraphWriter::setVaries(ir::ValueId base, bool varies) {
  if (varies_.size() <= static_cast<size_t>(base)) varies_.resize(base + 1, false);
  varies_[base] = varies;
}

const ir::Node* GraphWriter::makerOf(ir::ValueId value) const {
  const ir::NodeId def = value == ir::kNone ? ir::kNone : graph_.values[graph_.baseOf(value)].def;
  return def == ir::kNone ? nullptr : &graph_.nodes[def];
}

}  // namespace abele::capture

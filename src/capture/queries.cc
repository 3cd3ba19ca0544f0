#include "capture/queries.h"

#include <algorithm>

#include <ATen/core/Tensor.h>

namespace abele::capture {
namespace {

/// A one-element value as another plus a constant.
struct Sum {
  ir::ValueId root = ir::kNone;  // kNone: a plain number
  int64_t offset = 0;
};

/// The constant integer that a value always is.
std::optional<int64_t> numberOf(const Recording& recording, const GraphWriter& writer, ir::ValueId value) {
  const ir::Graph& graph = recording.graph;
  for (const ir::Input& input : graph.inputs) {
    if (input.value != graph.baseOf(value) || input.kind != ir::InputKind::kConstant) continue;
    if (writer.varies(input.value)) return std::nullopt;
    const at::Tensor& constant = recording.constants[input.external];
    if (constant.numel() != 1 || !at::isIntegralType(constant.scalar_type(), false)) return std::nullopt;
    return constant.item<int64_t>();
  }
  return std::nullopt;
}

Sum sumOf(const Recording& recording, const GraphWriter& writer, ir::ValueId value) {
  const ir::Graph& graph = recording.graph;
  Sum sum{value};
  while (true) {
    const ir::Value& held = graph.values[sum.root];
    if (held.type.numel() == 1 && graph.values[held.base].type.numel() == 1) sum.root = held.base;
    if (const auto number = numberOf(recording, writer, sum.root)) return Sum{ir::kNone, sum.offset + *number};
    const ir::NodeId def = graph.values[sum.root].def;
    if (def == ir::kNone) return sum;
    const ir::Node& node = graph.nodes[def];
    const bool adds = node.op == "aten::add.Tensor", subtracts = node.op == "aten::sub.Tensor";
    if (node.op == "aten::_to_copy" || node.op == "aten::clone") {
      const ir::Value& from = graph.values[node.args[0].i];
      if (from.type.numel() != 1 || !at::isIntegralType(static_cast<at::ScalarType>(from.type.dtype), false))
        return sum;
      sum.root = static_cast<ir::ValueId>(node.args[0].i);
      continue;
    }
    if ((!adds && !subtracts) || node.args[2].i != 1 || node.args[0].kind != Arg::Kind::kId) return sum;
    std::optional<int64_t> term;
    ir::ValueId rest = static_cast<ir::ValueId>(node.args[0].i);
    const Arg& second = node.args[1];
    if (second.kind == Arg::Kind::kNumber && second.number_kind == Arg::Kind::kInt) term = second.i;
    if (second.kind == Arg::Kind::kId) {
      term = numberOf(recording, writer, static_cast<ir::ValueId>(second.i));
      if (!term && adds) {
        term = numberOf(recording, writer, rest);
        rest = static_cast<ir::ValueId>(second.i);
      }
    }
    if (!term || graph.values[rest].type.numel() != 1) return sum;
    sum.offset += adds ? *term : -*term;
    sum.root = rest;
  }
}

}  // namespace

std::optional<int64_t> constantDifference(const Recording& recording, const GraphWriter& writer, ir::ValueId start,
                                          ir::ValueId stop) {
  const Sum a = sumOf(recording, writer, start), b = sumOf(recording, writer, stop);
  if (a.root != b.root) return std::nullopt;
  return b.offset - a.offset;
}

int64_t numOperators(const ir::Graph& graph, const std::string& part) {
  return std::ranges::count_if(graph.nodes,
                               [&](const ir::Node& node) { return node.op.find(part) != std::string::npos; });
}

int64_t numReaders(const ir::Graph& graph, ir::ValueId value) {
  const ir::ValueId base = graph.baseOf(value);
  int64_t count = 0;
  for (const ir::Node& node : graph.nodes) {
    if (node.is_view) continue;
    ir::forEachOperand(node, [&](ir::ValueId v) { count += graph.baseOf(v) == base; });
  }
  return count;
}

}  // namespace abele::capture

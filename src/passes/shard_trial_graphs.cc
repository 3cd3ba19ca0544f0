#include "passes/shard_trial_graphs.h"

namespace abele::passes {
namespace {

using ir::kNone;
using ir::Node;
using ir::NodeId;
using ir::ValueId;

// As in c10::MemoryFormat.
constexpr int64_t kContiguousFormat = 0, kPreserveFormat = 1;

std::function<Node&()> adderTo(ir::Graph& graph) {
  return [&graph]() -> Node& { return graph.addNode(""); };
}

ValueId addCopy(ir::Graph& graph, ValueId v, const Type& type, int64_t format) {
  Node& node = graph.addNode("aten::clone");
  node.args = {Arg::id(v), Arg::integer(format)};
  const ValueId copy = graph.addValue(type, node.id);
  node.results = {{copy}};
  return copy;
}

}  // namespace

void Views::note(ValueId view) {
  const ir::Value& value = graph_.values[index(view)];
  known_.emplace(std::tuple(value.base, value.type.str(), value.offset), view);
}

ValueId Views::of(ValueId base, const Type& type, int64_t offset, const std::function<Node&()>& add) {
  if (offset == 0 && type == graph_.values[index(base)].type) return base;
  const auto [known, is_new] = known_.emplace(std::tuple(base, type.str(), offset), kNone);
  if (is_new) known->second = ir::makeView(graph_, add(), type, offset, base);
  return known->second;
}

ValueId TrialGraphs::wholeOperand(ValueId v) {
  const ir::Value& value = program_.values[index(v)];
  return whole_views_.of(input(whole, v), value.type, value.offset, adderTo(whole.graph));
}

ValueId TrialGraphs::partOperand(ValueId v, const OperandPlace& place, size_t part) {
  const ValueId base = place.from ? pieceOf(program_.baseOf(v), *place.from, part) : input(parts, v);
  return part_views_.of(base, place.value.type, place.value.offset, adderTo(parts.graph));
}

ValueId TrialGraphs::copyOf(Side& side, ValueId v) {
  const Type type = side.graph.values[index(v)].type;
  return addCopy(side.graph, v, type, kPreserveFormat);
}

std::vector<ValueId> TrialGraphs::add(Side& side, Node node, const std::vector<Type>& results, const Operand& operand) {
  for (size_t i = 0; i < node.args.size(); ++i)
    forEachId(node.args[i], [&](int64_t& id) { id = operand(i, static_cast<ValueId>(id)); });
  node.stage = node.block = kNone;
  node.id = side.graph.addNode(node.op).id;
  std::vector<ValueId> made;
  for (const Type& type : results) made.push_back(type.defined() ? side.graph.addValue(type, node.id) : kNone);
  if (node.writes.empty()) {
    node.results.clear();
    for (ValueId v : made) node.results.push_back({v});
  } else {
    ir::Write& write = node.writes[0];
    write.before = static_cast<ValueId>(node.args[index(write.arg)].i);
    write.after = made[0];
    write.view = results[0];
  }
  side.graph.nodes.back() = std::move(node);
  return made;
}

void TrialGraphs::compare(ValueId of_whole, const Type& range, int64_t offset, ValueId of_part) {
  const auto target = static_cast<int32_t>(whole.graph.outputs.size());
  const ValueId expected = whole_views_.of(of_whole, range, offset, adderTo(whole.graph));
  whole.graph.outputs.push_back({expected, ir::OutputKind::kResult, target});
  parts.graph.outputs.push_back({of_part, ir::OutputKind::kResult, target});
}

// The base of an operand. It becomes an argument of both graphs.
ValueId TrialGraphs::input(Side& side, ValueId v) {
  const ValueId base = program_.baseOf(v);
  const Type& type = program_.values[index(base)].type;
  for (Side* each : {&whole, &parts})
    if (!each->inputs.contains(base)) {
      const auto argument = static_cast<int32_t>(each->inputs.size());
      each->inputs[base] = each->graph.addInput(type, ir::InputKind::kArgument, argument, "");
    }
  return side.inputs.at(base);
}

// A part of a base, in memory of its own as another node made it.
ValueId TrialGraphs::pieceOf(ValueId base, const Parts& cut, size_t part) {
  const auto [known, is_new] = pieces_.emplace(std::pair(base, part), kNone);
  if (!is_new) return known->second;
  int dim = cut.dim;
  Type range = inMemoryOrder(cut.type, dim);
  const int64_t offset = beginOf(cut.ends, part) * range.strides[index(dim)];
  range.sizes[index(dim)] = lengthOf(cut.ends, part);
  const ValueId view = part_views_.of(input(parts, base), range, offset, adderTo(parts.graph));
  return known->second = addCopy(parts.graph, view, contiguousType(range.dtype, range.sizes), kContiguousFormat);
}

}  // namespace abele::passes

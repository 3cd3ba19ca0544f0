// Before:  %g = aten.mm(%a, %b) {dir=bwd}, abele.accumulate(%sum, %g) writes(0: %sum -> %new) {dir=bwd}
// After:   abele.accumulate_product(%sum, %a, %b) writes(0: %sum -> %new) {dir=bwd}
//          with a last operand `true` if the program allows sums in another order: the kernel then makes no trial of
//          bits
// Before:  %g = aten.embedding_dense_backward(%d, %i, rows, padding, false), abele.accumulate(%sum, %g) writes(...)
// After:   abele.accumulate_rows(%sum, %d, %i, padding) writes(...)
// Order:   after all passes that look at gradients; only if several micro-batches are added up, because backward makes
//          a single gradient in the sum's memory anyway.
// Cost:    O(edges).   Undone by: nothing.
#include <vector>

#include "base/instructions.h"
#include "ir/rewrite.h"
#include "passes/pass.h"

namespace abele::passes {
namespace {

using ir::Node;
using ir::ValueId;

class AccumulationFusion {
 public:
  AccumulationFusion(ir::Graph& graph, bool reorders_sums)
      : graph_(graph),
        reorders_sums_(reorders_sums),
        position_(ir::positionsById(graph)),
        uses_(graph.values.size(), 0) {}

  Changed run() {
    for (const Node& node : graph_.nodes)
      ir::forEachOperand(node, [&](ValueId v) { ++uses_[index(graph_.baseOf(v))]; });
    for (const ir::Output& output : graph_.outputs) ++uses_[index(graph_.baseOf(output.value))];
    std::vector<bool> joined(graph_.nodes.size(), false);
    bool any = false;
    for (Node& node : graph_.nodes) {
      if (ownOp(node.op) != OwnOp::kAccumulate) continue;
      const int32_t maker = makerOf(node);
      if (maker == ir::kNone || !join(node, graph_.nodes[index(maker)])) continue;
      joined[index(maker)] = any = true;
    }
    if (!any) return Changed::kNo;
    ir::removeNodes(graph_, joined);
    return Changed::kYes;
  }

 private:
  static size_t index(int32_t i) { return static_cast<size_t>(i); }
  const Type& typeOf(const Arg& arg) const { return graph_.values[index(static_cast<ValueId>(arg.i))].type; }
  static bool isTensor(const Arg& arg) { return arg.kind == Arg::Kind::kId && arg.i >= 0; }
  static bool isDense(const Type& type) { return type == contiguousType(type.dtype, type.sizes); }

  // Position of the node that makes the whole gradient as its only result, if only `sum` reads it and both are in one
  // task.
  int32_t makerOf(const Node& sum) const {
    const ValueId gradient = static_cast<ValueId>(sum.args.at(1).i);
    const ir::Value& value = graph_.values[index(gradient)];
    if (value.base != gradient || value.def == ir::kNone || uses_[index(gradient)] != 1) return ir::kNone;
    const int32_t position = position_[index(value.def)];
    const Node& maker = graph_.nodes[index(position)];
    const bool gives_it_alone = maker.results.size() == 1 && maker.results[0].size() == 1 && maker.writes.empty();
    const ir::Write& write = sum.writes.at(0);
    const bool is_whole = write.offset == 0 && write.view == typeOf(sum.args[0]);
    const bool is_like = write.view.sizes == value.type.sizes && write.view.dtype == value.type.dtype;
    return gives_it_alone && is_whole && is_like && maker.stage == sum.stage && maker.direction == sum.direction
               ? position
               : ir::kNone;
  }

  // Makes `sum` do the work of `maker` too, if there is an instruction for that.
  bool join(Node& sum, const Node& maker) {
    const std::vector<Arg>& args = maker.args;
    if (maker.op == "aten::mm" && isProduct(sum, args)) {
      sum.op = ownOpName(OwnOp::kAccumulateProduct);
      sum.args = {sum.args[0], args[0], args[1]};
      if (reorders_sums_) sum.args.push_back(Arg::boolean(true));
    } else if (maker.op == "aten::embedding_dense_backward" && isRows(sum, args)) {
      sum.op = ownOpName(OwnOp::kAccumulateRows);
      sum.args = {sum.args[0], args[0], args[1], args[3]};
    } else {
      return false;
    }
    sum.time_ns += maker.time_ns;
    sum.block = maker.block;
    sum.source = maker.source;
    sum.scope = maker.scope;
    return true;
  }

  bool isProduct(const Node& sum, const std::vector<Arg>& args) const {
    const DType dtype = typeOf(sum.args[0]).dtype;
    const bool is_narrow = dtype == DType::kBFloat16;  // one rounding instead of two, so the bits never equal eager's
    return args.size() == 2 && (dtype == DType::kFloat32 || dtype == DType::kFloat64 || (is_narrow && reorders_sums_));
  }

  // Checks the arguments: gradient, indices, number of rows, row of padding, and whether frequent rows count less.
  bool isRows(const Node& sum, const std::vector<Arg>& args) const {
    const Type& total = typeOf(sum.args[0]);
    if (args.size() != 5 || !isTensor(args[0]) || !isTensor(args[1]) || args[3].kind != Arg::Kind::kInt ||
        args[4].i != 0 || total.sizes.size() != 2)
      return false;
    const Type &gradient = typeOf(args[0]), &indices = typeOf(args[1]);
    const bool has_indices = indices.dtype == DType::kInt64 || indices.dtype == DType::kInt32;
    return has_indices && total.dtype == DType::kFloat32 && gradient.dtype == DType::kFloat32 && isDense(total) &&
           isDense(gradient) && isDense(indices);
  }

  ir::Graph& graph_;
  bool reorders_sums_;
  std::vector<int32_t> position_;
  std::vector<int32_t> uses_;  // by base value
};

}  // namespace

Changed fuseAccumulation(ir::Graph& graph, PassContext& context) {
  return AccumulationFusion(graph, context.reorders_sums).run();
}

}  // namespace abele::passes

// Before:  %y = aten.convolution(%x, %w, none, [1, 1], [1, 1], [1, 1], false, [0, 0], 1)
// After:   %y = abele_op.packed_convolution(%x, %w, none, [1, 1], [1, 1], [1, 1], false, [0, 0], 1)
//          where weight and bias are parameters that nothing in the program writes: a device may keep them in the
//          library's own layout from the first micro-batch of a step to the last.
// Order:   after all passes that look for convolutions by name.
// Cost:    O(edges).   Undone by: nothing.
#include <vector>

#include "passes/pass.h"

namespace abele::passes {
namespace {

using ir::ValueId;

class ConvolutionPacking {
 public:
  explicit ConvolutionPacking(const ir::Graph& graph) : graph_(graph), is_fixed_(graph.values.size(), false) {
    for (const ir::Input& input : graph.inputs)
      if (input.kind == ir::InputKind::kParameter) is_fixed_[index(input.value)] = true;
    for (const ir::Node& node : graph.nodes)
      for (const ir::Write& write : node.writes) is_fixed_[index(graph.baseOf(write.before))] = false;
  }

  bool fits(const ir::Node& node) const {
    if (node.op != "aten::convolution" || node.direction != ir::Direction::kForward || node.args.size() != 9 ||
        node.results.size() != 1 || node.results[0].size() != 1 || node.results[0][0] < 0)
      return false;
    const Arg &bias = node.args[2], &is_transposed = node.args[6];
    const bool has_bias = bias.kind == Arg::Kind::kId && bias.i >= 0;
    return isImage(node.args[0]) && isImage(node.args[1]) && isFixed(node.args[1]) && (!has_bias || isFixed(bias)) &&
           is_transposed.i == 0;
  }

 private:
  static size_t index(int64_t i) { return static_cast<size_t>(i); }
  bool isFixed(const Arg& arg) const { return is_fixed_[index(arg.i)]; }
  // Four dimensions of float32, one element behind the other.
  bool isImage(const Arg& arg) const {
    if (arg.kind != Arg::Kind::kId || arg.i < 0) return false;
    const Type& type = graph_.values[index(arg.i)].type;
    return type.dtype == DType::kFloat32 && type.sizes.size() == 4 && type == contiguousType(type.dtype, type.sizes);
  }

  const ir::Graph& graph_;
  std::vector<bool> is_fixed_;  // by value: a parameter as a whole that is not written
};

}  // namespace

Changed packConvolutions(ir::Graph& graph, PassContext&) {
  const ConvolutionPacking packing(graph);
  Changed changed = Changed::kNo;
  for (ir::Node& node : graph.nodes) {
    if (!packing.fits(node)) continue;
    node.op = "abele_op::packed_convolution";
    changed = Changed::kYes;
  }
  return changed;
}

}  // namespace abele::passes

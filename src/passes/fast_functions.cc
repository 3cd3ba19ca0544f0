// Before:  %y = aten.gelu(%x, "none"), %dx = aten.gelu_backward(%dy, %x, "none") {dir=bwd}
// After:   %y = abele_op.gelu(%x), %dx = abele_op.gelu_backward(%dy, %x) {dir=bwd}
// Order:   after recompute, so that what runs again runs as fast.
// Cost:    O(nodes).   Undone by: nothing.
#include <algorithm>

#include "passes/pass.h"

namespace abele::passes {
namespace {

// Tensors of one type, one element behind the other, and the exact function among those of its name.
bool isExactGelu(const ir::Graph& graph, const ir::Node& node, size_t tensors) {
  if (node.args.size() != tensors + 1 || node.results.size() != 1 || node.results[0].size() != 1 ||
      node.results[0][0] < 0 || !node.writes.empty())
    return false;
  const Type& type = graph.values[static_cast<size_t>(node.results[0][0])].type;
  const Arg& kind = node.args.back();
  return (type.dtype == DType::kFloat32 || type.dtype == DType::kBFloat16) &&
         type == contiguousType(type.dtype, type.sizes) && kind.kind == Arg::Kind::kString && kind.s == "none" &&
         std::all_of(node.args.begin(), node.args.end() - 1, [&](const Arg& arg) {
           return arg.kind == Arg::Kind::kId && arg.i >= 0 && graph.values[static_cast<size_t>(arg.i)].type == type;
         });
}

}  // namespace

Changed fastFunctions(ir::Graph& graph, PassContext&) {
  Changed changed = Changed::kNo;
  for (ir::Node& node : graph.nodes) {
    const bool is_gradient = node.op == "aten::gelu_backward";
    if ((!is_gradient && node.op != "aten::gelu") || !isExactGelu(graph, node, is_gradient ? 2 : 1)) continue;
    node.op = is_gradient ? "abele_op::gelu_backward" : "abele_op::gelu";
    node.args.pop_back();
    changed = Changed::kYes;
  }
  return changed;
}

}  // namespace abele::passes

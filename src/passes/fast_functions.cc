// Before:  %y = aten.gelu(%x, "none"), %dx = aten.gelu_backward(%dy, %x, "none") {dir=bwd}
// After:   %y = abele_op.gelu(%x), %dx = abele_op.gelu_backward(%dy, %x) {dir=bwd}
// Before:  %y, %m, %s = aten.native_layer_norm(%x, [n], %w, %b, eps)
//          %dx, %dw, %db = aten.native_layer_norm_backward(%dy, %x, [n], %m, %s, %w, %b, [true, true, true]) {dir=bwd}
// After:   %y, %m, %s = abele_op.layer_norm(%x, [n], %w, %b, eps)
//          %dx, %dw, %db = abele_op.layer_norm_backward(%dy, %x, [n], %m, %s, %w) {dir=bwd}
// Order:   after recompute, so that recomputed functions are fast too.
// Cost:    O(nodes).   Undone by: nothing.
#include <algorithm>

#include "passes/pass.h"

namespace abele::passes {
namespace {

const Type* typeOf(const ir::Graph& graph, const Arg& arg) {
  return arg.kind == Arg::Kind::kId && arg.i >= 0 ? &graph.values[static_cast<size_t>(arg.i)].type : nullptr;
}

// Whether the elements follow one another without gaps.
bool isDense(const Type* type, DType dtype) {
  return type && type->dtype == dtype && *type == contiguousType(type->dtype, type->sizes);
}

// True for dense tensors of one type, and for the exact GELU rather than the tanh approximation.
bool isExactGelu(const ir::Graph& graph, const ir::Node& node, size_t tensors) {
  if (node.args.size() != tensors + 1 || node.results.size() != 1 || node.results[0].size() != 1 ||
      node.results[0][0] < 0 || !node.writes.empty())
    return false;
  const Type& type = graph.values[static_cast<size_t>(node.results[0][0])].type;
  const Arg& kind = node.args.back();
  return (type.dtype == DType::kFloat32 || type.dtype == DType::kBFloat16) && isDense(&type, type.dtype) &&
         kind.kind == Arg::Kind::kString && kind.s == "none" &&
         std::all_of(node.args.begin(), node.args.end() - 1, [&](const Arg& arg) {
           const Type* operand = typeOf(graph, arg);
           return operand && *operand == type;
         });
}

// True for rows of float32 with weight and bias, if something reads all the results.
bool isDenseNorm(const ir::Graph& graph, const ir::Node& node, std::initializer_list<size_t> tensors) {
  const bool is_read = node.results.size() == 3 &&
                       std::all_of(node.results.begin(), node.results.end(), [](auto& ids) { return ids.size() == 1; });
  return is_read && node.results[0][0] >= 0 && node.writes.empty() &&
         std::all_of(tensors.begin(), tensors.end(),
                     [&](size_t i) { return isDense(typeOf(graph, node.args[i]), DType::kFloat32); });
}

bool isForwardNorm(const ir::Graph& graph, const ir::Node& node) {
  return node.op == "aten::native_layer_norm" && node.args.size() == 5 && isDenseNorm(graph, node, {0, 2, 3});
}

bool isBackwardNorm(const ir::Graph& graph, const ir::Node& node) {
  if (node.op != "aten::native_layer_norm_backward" || node.args.size() != 8) return false;
  const std::vector<int64_t>& wanted = node.args[7].ints;
  return std::count(wanted.begin(), wanted.end(), 1) == 3 && isDenseNorm(graph, node, {0, 1, 3, 4, 5, 6});
}

}  // namespace

Changed fastFunctions(ir::Graph& graph, PassContext&) {
  Changed changed = Changed::kNo;
  for (ir::Node& node : graph.nodes) {
    const bool is_gradient = node.op == "aten::gelu_backward";
    if ((is_gradient || node.op == "aten::gelu") && isExactGelu(graph, node, is_gradient ? 2 : 1)) {
      node.op = is_gradient ? "abele_op::gelu_backward" : "abele_op::gelu";
      node.args.pop_back();
    } else if (isForwardNorm(graph, node)) {
      node.op = "abele_op::layer_norm";
    } else if (isBackwardNorm(graph, node)) {
      node.op = "abele_op::layer_norm_backward";
      node.args.resize(6);
    } else {
      continue;
    }
    changed = Changed::kYes;
  }
  return changed;
}

}  // namespace abele::passes

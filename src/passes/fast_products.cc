// Before:  %y = aten.mm(%a, %b), %z = aten.addmm(%bias, %a, %b)
// After:   %y = abele_op.mm(%a, %b), %z = abele_op.addmm(%bias, %a, %b)
// Before:  %y = aten.convolution(%x, %w, %b, [1, 1], [0, 0], [1, 1], false, [0, 0], 1)
//          %dx, %dw, %db = aten.convolution_backward(%dy, %x, %w, [8], [1, 1], [0, 0], [1, 1], false, [0, 0], 1,
//              [true, true, true]) {dir=bwd}
// After:   %y = abele_op.convolution(%x, %w, %b, [1, 1], [0, 0], [1, 1])
//          %dx, %dw, %db = abele_op.convolution_backward(%dy, %x, %w, [1, 1], [0, 0], [1, 1], [true, true, true])
//              {dir=bwd}
// Order:   after fuse-accumulation, which joins ATen's products with their sums, and after split-weight-gradient, which
//          divides ATen's convolution_backward.
// Cost:    O(nodes).   Undone by: nothing.
#include <algorithm>

#include "passes/pass.h"

namespace abele::passes {
namespace {

bool isFloat32(const ir::Graph& graph, const ir::Node& node) {
  return node.results.size() == 1 && node.results[0].size() == 1 && node.results[0][0] >= 0 && node.writes.empty() &&
         graph.values[static_cast<size_t>(node.results[0][0])].type.dtype == DType::kFloat32;
}

// Whether addmm's factors are 1, as in linear layers.
bool hasNoFactors(const ir::Node& node) {
  return std::all_of(node.args.begin() + 3, node.args.end(),
                     [](const Arg& factor) { return factor.kind == Arg::Kind::kInt && factor.i == 1; });
}

// Whether the argument is a tensor of float32 [N, C, H, W] whose elements follow one another without gaps.
bool isDenseImages(const ir::Graph& graph, const Arg& arg) {
  if (arg.kind != Arg::Kind::kId || arg.i < 0) return false;
  const Type& type = graph.values[static_cast<size_t>(arg.i)].type;
  return type.dtype == DType::kFloat32 && type.sizes.size() == 4 && type.numel() > 0 &&
         type == contiguousType(type.dtype, type.sizes);
}

// Whether images and weights are dense, and the arguments from `steps` on describe a convolution over height and width
// that is neither transposed nor in groups.
bool isPlainConvolution(const ir::Graph& graph, const ir::Node& node, size_t tensors, size_t steps) {
  if (node.args.size() < steps + 6 || !node.writes.empty()) return false;
  for (size_t i = 0; i < tensors; ++i)
    if (!isDenseImages(graph, node.args[i])) return false;
  for (size_t i = steps; i < steps + 3; ++i)
    if (node.args[i].ints.size() != 2) return false;
  const Arg &transposed = node.args[steps + 3], &groups = node.args[steps + 5];
  return transposed.kind == Arg::Kind::kBool && transposed.i == 0 && groups.kind == Arg::Kind::kInt && groups.i == 1;
}

// Whether all results that something reads are dense.
bool hasDenseResults(const ir::Graph& graph, const ir::Node& node) {
  bool are_dense = true;
  ir::forEachResult(node, [&](ir::ValueId v) {
    const Type& type = graph.values[static_cast<size_t>(v)].type;
    are_dense = are_dense && type == contiguousType(DType::kFloat32, type.sizes);
  });
  return are_dense;
}

bool makeFastConvolution(const ir::Graph& graph, ir::Node& node) {
  const bool is_backward = node.op == "aten::convolution_backward" && node.args.size() == 11;
  if (!is_backward && node.op != "aten::convolution") return false;
  if (!isPlainConvolution(graph, node, is_backward ? 3 : 2, is_backward ? 4 : 3) || !hasDenseResults(graph, node))
    return false;
  node.op = is_backward ? "abele_op::convolution_backward" : "abele_op::convolution";
  if (is_backward)
    node.args = {node.args[0], node.args[1], node.args[2], node.args[4], node.args[5], node.args[6], node.args[10]};
  else
    node.args.resize(6);
  return true;
}

}  // namespace

Changed fastProducts(ir::Graph& graph, PassContext&) {
  Changed changed = Changed::kNo;
  for (ir::Node& node : graph.nodes) {
    if (makeFastConvolution(graph, node)) {
      changed = Changed::kYes;
      continue;
    }
    if (!isFloat32(graph, node)) continue;
    if (node.op == "aten::mm" && node.args.size() == 2) {
      node.op = "abele_op::mm";
    } else if (node.op == "aten::addmm" && node.args.size() >= 3 && hasNoFactors(node)) {
      node.op = "abele_op::addmm";
      node.args.resize(3);
    } else {
      continue;
    }
    changed = Changed::kYes;
  }
  return changed;
}

}  // namespace abele::passes

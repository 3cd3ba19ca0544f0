// Before:  %y = aten.mm(%a, %b), %z = aten.addmm(%bias, %a, %b)
// After:   %y = abele_op.mm(%a, %b), %z = abele_op.addmm(%bias, %a, %b)
// Order:   after fuse-accumulation, which joins ATen's products with their sums.
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

}  // namespace

Changed fastProducts(ir::Graph& graph, PassContext&) {
  Changed changed = Changed::kNo;
  for (ir::Node& node : graph.nodes) {
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

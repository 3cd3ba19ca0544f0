#include "plan/operator_cost.h"

#include <algorithm>
#include <cmath>

namespace abele::plan {
namespace {

constexpr double kNsPerOperator = 1000;
constexpr double kBytesPerNs = 10;
constexpr double kFlopsPerNs = 50;

const Type& operandType(const ir::Graph& graph, const ir::Node& node, size_t arg) {
  static const Type none;
  if (arg >= node.args.size() || node.args[arg].kind != Arg::Kind::kId || node.args[arg].i < 0) return none;
  return graph.values[static_cast<size_t>(node.args[arg].i)].type;
}

// [B,M,K] x [B,K,N] -> [B,M,N]: the product of the three sizes is (M K N)^2 B^3.
double productFlops(const Type& a, const Type& b, double result_elements) {
  if (!a.defined() || !b.defined()) return 0;
  const double batch = a.sizes.size() == 3 ? std::max<double>(1, static_cast<double>(a.sizes[0])) : 1;
  const double elements = static_cast<double>(a.numel()) * static_cast<double>(b.numel()) * result_elements;
  return 2 * std::sqrt(elements / batch);
}

double convolutionFlops(const Type& weight, double output_elements) {
  if (!weight.defined() || weight.sizes.empty() || weight.sizes[0] == 0) return 0;
  return 2 * output_elements * static_cast<double>(weight.numel()) / static_cast<double>(weight.sizes[0]);
}

double flopsOf(const ir::Graph& graph, const ir::Node& node, double result_elements) {
  const std::string& op = node.op;
  if (op == "aten::mm" || op == "aten::bmm")
    return productFlops(operandType(graph, node, 0), operandType(graph, node, 1), result_elements);
  if (op == "aten::addmm" || op == "aten::baddbmm")
    return productFlops(operandType(graph, node, 1), operandType(graph, node, 2), result_elements);
  if (op.starts_with("aten::convolution_backward")) {
    // One convolution for each of the two large gradients that are asked for.
    const double one =
        convolutionFlops(operandType(graph, node, 2), static_cast<double>(operandType(graph, node, 0).numel()));
    const Arg* mask = node.args.empty() ? nullptr : &node.args.back();
    const bool has_mask = mask && mask->kind == Arg::Kind::kBoolList && mask->ints.size() >= 2;
    return has_mask ? one * static_cast<double>((mask->ints[0] != 0) + (mask->ints[1] != 0)) : 2 * one;
  }
  if (op.starts_with("aten::convolution") || op.starts_with("aten::mkldnn_convolution"))
    return convolutionFlops(operandType(graph, node, 1), result_elements);
  return 0;
}

}  // namespace

int64_t estimateNs(const ir::Graph& graph, const ir::Node& node) {
  double bytes = 0, result_elements = 0;
  ir::forEachOperand(node, [&](ir::ValueId v) { bytes += static_cast<double>(graph.values[v].type.extentBytes()); });
  ir::forEachResult(node, [&](ir::ValueId v) {
    bytes += static_cast<double>(graph.values[v].type.extentBytes());
    result_elements = std::max(result_elements, static_cast<double>(graph.values[v].type.numel()));
  });
  return static_cast<int64_t>(kNsPerOperator + bytes / kBytesPerNs +
                              flopsOf(graph, node, result_elements) / kFlopsPerNs);
}

}  // namespace abele::plan

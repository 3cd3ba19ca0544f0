#include "plan/operator_cost.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <string_view>

#include "base/cat.h"
#include "base/instructions.h"

namespace abele::plan {
namespace {

constexpr double kNsPerOperator = 1000;  // overhead of every call
constexpr double kBytesPerNs = 20;
constexpr double kFlopsPerNs = 50;
constexpr double kNsPerDraw = 6;

// The time that operators need beyond moving bytes, for each element of their largest result or operand: ns, and the
// names without namespace, leading and trailing "_", overload and "_backward". A backward takes 1.5 times as long.
struct ElementCost {
  double ns;
  std::string_view names;  // with a blank before and after each
};
constexpr ElementCost kElementCosts[] = {
    {0.2, " sqrt "},
    {0.3, " rsqrt mean sum "},
    {0.5, " native_group_norm prod "},
    {0.7, " celu elu exp exp2 log log2 sigmoid silu native_layer_norm "},
    {1,
     " cos cosh erf expm1 log10 log1p logit sin sinh cumprod cumsum fused_rms_norm log_softmax logsumexp softmax "
     "adaptive_avg_pool2d "},
    {1.5,
     " acos acosh asin asinh atan atanh gelu log_sigmoid softplus batch_norm native_batch_norm std std_mean var "
     "var_mean avg_pool2d "},
    {2, " atan2 erfc pow tan tanh adaptive_max_pool2d avg_pool3d max_pool2d_with_indices upsample_linear1d "},
    {3, " logaddexp mish upsample_bilinear2d "},
    {4, " safe_softmax max_pool3d_with_indices "},
    {5, " digamma erfinv lgamma "},
    {6, " upsample_trilinear3d "},
    {8, " grid_sampler_2d "},
    {10, " topk upsample_bicubic2d fft_c2c fft_c2r fft_r2c "},
    {16, " grid_sampler_3d "},
    {20, " kthvalue median "},
    {60, " argsort sort unique2 "},
};

// Operators that read or write the first operand at positions given by indices.
constexpr std::string_view kIndexed[] = {"embedding", "embedding_bag",  "gather",     "index",        "index_add",
                                         "index_put", "index_put_impl", "index_copy", "index_select", "scatter_add",
                                         "take"};

std::string_view baseName(std::string_view op, bool& is_backward) {
  op.remove_prefix(std::min(op.size(), op.find("::") == std::string_view::npos ? 0 : op.find("::") + 2));
  op = op.substr(0, op.find('.'));
  while (op.starts_with('_')) op.remove_prefix(1);
  if (op.ends_with('_')) op.remove_suffix(1);
  const size_t backward = op.find("_backward");
  is_backward = backward != std::string_view::npos;
  return op.substr(0, backward);
}

/// For these exponents torch multiplies instead of calling pow.
bool isSmallPower(const Arg& exponent) {
  const double value = exponent.kind == Arg::Kind::kInt ? static_cast<double>(exponent.i) : exponent.d;
  return (exponent.kind == Arg::Kind::kInt || exponent.kind == Arg::Kind::kDouble ||
          exponent.kind == Arg::Kind::kNumber) &&
         (value == 1 || value == 2 || value == 3);
}

double perElement(const ir::Node& node) {
  bool is_backward = false;
  const std::string_view name = baseName(node.op, is_backward);
  if (name == "pow" && node.args.size() > 1 && isSmallPower(node.args[1])) return 0;
  const std::string wanted = cat(" ", name, " ");
  for (const ElementCost& cost : kElementCosts)
    if (cost.names.find(wanted) != std::string_view::npos) return is_backward ? 1.5 * cost.ns : cost.ns;
  return 0;
}

bool isIndexed(const std::string& op) {
  bool is_backward = false;
  const std::string_view name = baseName(op, is_backward);
  return op == ownOpName(OwnOp::kAccumulateRows) ||
         (!is_backward && std::ranges::find(kIndexed, name) != std::end(kIndexed));
}

class Estimate {
 public:
  Estimate(const ir::Graph& graph, const ir::Node& node) : graph_(graph), node_(node) {
    ir::forEachOperand(node, [&](ir::ValueId v) { operands_ += add(v); });
    ir::forEachResult(node, [&](ir::ValueId v) {
      results_ += add(v);
      result_elements_ = std::max(result_elements_, static_cast<double>(graph.values[v].type.numel()));
    });
  }

  double ns() const {
    return kNsPerOperator + bytes() / kBytesPerNs + flops() / kFlopsPerNs + elements_ * perElement(node_) +
           draws() * kNsPerDraw;
  }

 private:
  double add(ir::ValueId v) {
    const Type& type = graph_.values[v].type;
    elements_ = std::max(elements_, static_cast<double>(type.numel()));
    return static_cast<double>(type.extentBytes());
  }
  // The type of the operand at this position; undefined if it is not a tensor.
  const Type& operand(size_t arg) const {
    static const Type none;
    if (arg >= node_.args.size() || node_.args[arg].kind != Arg::Kind::kId || node_.args[arg].i < 0) return none;
    return graph_.values[node_.args[arg].i].type;
  }
  bool is(std::string_view name) const { return node_.op.starts_with(name); }

  double bytes() const {
    const double all = operands_ + results_;
    if (!isIndexed(node_.op)) return all;
    const Type& first = operand(0);
    if (!first.defined()) return all;
    const double table = static_cast<double>(first.extentBytes()), rest = operands_ - table;
    return rest + std::min(table, std::max(results_, rest)) +
           (node_.writes.empty() ? results_ : std::min(results_, rest));
  }

  double draws() const {
    return static_cast<double>(std::max<int64_t>(node_.random_draws, 0)) + 2 * static_cast<double>(node_.normals.count);
  }

  double flops() const;
  double product(size_t left, size_t right) const;
  double convolution(const Type& weight, double output_elements, bool is_transposed, const Type& input) const;
  double attention(bool is_backward) const;
  double recurrent() const;

  const ir::Graph& graph_;
  const ir::Node& node_;
  double operands_ = 0, results_ = 0;  // bytes
  double elements_ = 0, result_elements_ = 0;
};

// [B,M,K] x [B,K,N] -> [B,M,N]: the product of the three tensors' sizes is (M K N)^2 B^3.
double Estimate::product(size_t left, size_t right) const {
  const Type &a = operand(left), &b = operand(right);
  if (!a.defined() || !b.defined()) return 0;
  const double batch = a.sizes.size() == 3 ? std::max<double>(1, static_cast<double>(a.sizes[0])) : 1;
  const double elements = static_cast<double>(a.numel()) * static_cast<double>(b.numel()) * result_elements_;
  return 2 * std::sqrt(elements / batch);
}

// A weight has one row for each output channel; a transposed one has a row for each input channel.
double Estimate::convolution(const Type& weight, double output_elements, bool is_transposed, const Type& input) const {
  if (!weight.defined() || weight.sizes.empty() || weight.sizes[0] == 0) return 0;
  const double places = is_transposed && input.defined() ? static_cast<double>(input.numel()) : output_elements;
  return 2 * places * static_cast<double>(weight.numel()) / static_cast<double>(weight.sizes[0]);
}

// Queries [..., L, E] and keys [..., S, E]: two products in forward and five in backward, at half the speed of large
// products.
double Estimate::attention(bool is_backward) const {
  const Type &query = operand(is_backward ? 1 : 0), &key = operand(is_backward ? 2 : 1);
  if (!query.defined() || !key.defined() || key.sizes.size() < 2) return 0;
  const auto keys = static_cast<double>(key.sizes[key.sizes.size() - 2]);
  return 2 * (is_backward ? 5 : 2) * 2 * static_cast<double>(query.numel()) * keys;
}

// Inputs [T, B, I], then weights of the input and of the state. Each of the T steps reads the weights of the state
// again.
double Estimate::recurrent() const {
  const Type &input = operand(0), &first = operand(1), &second = operand(2);
  if (!input.defined() || !first.defined() || !second.defined() || input.sizes.size() < 2) return 0;
  const auto steps = static_cast<double>(input.sizes[0]);
  const double places = steps * static_cast<double>(input.sizes[1]);
  const double forward = 2 * places * static_cast<double>(first.numel() + second.numel()) +
                         steps * static_cast<double>(second.extentBytes()) * kFlopsPerNs / kBytesPerNs;
  return is("aten::mkldnn_rnn_layer_backward") ? 2 * forward : forward;
}

double Estimate::flops() const {
  const std::string& op = node_.op;
  if (op == "aten::mm" || op == "abele_op::mm" || op == "aten::bmm") return product(0, 1);
  if (op == ownOpName(OwnOp::kAccumulateProduct) || op == "aten::addmm" || op == "abele_op::addmm" ||
      op == "aten::baddbmm")
    return product(1, 2);
  if (is("aten::convolution_backward") || is("abele_op::convolution_backward")) {
    // One convolution for each of the two large gradients that are wanted.
    const bool is_transposed = node_.args.size() > 7 && node_.args[7].kind == Arg::Kind::kBool && node_.args[7].i != 0;
    const double one = convolution(operand(2), static_cast<double>(operand(0).numel()), is_transposed, operand(1));
    const Arg* mask = node_.args.empty() ? nullptr : &node_.args.back();
    const bool has_mask = mask && mask->kind == Arg::Kind::kBoolList && mask->ints.size() >= 2;
    return has_mask ? one * static_cast<double>((mask->ints[0] != 0) + (mask->ints[1] != 0)) : 2 * one;
  }
  if (is("aten::convolution") || is("abele_op::convolution") || is("aten::mkldnn_convolution")) {
    const bool is_transposed = node_.args.size() > 6 && node_.args[6].kind == Arg::Kind::kBool && node_.args[6].i != 0;
    return convolution(operand(1), result_elements_, is_transposed, operand(0));
  }
  if (is("aten::_scaled_dot_product_")) return attention(op.find("_backward") != std::string::npos);
  if (is("aten::mkldnn_rnn_layer")) return recurrent();
  return 0;
}

}  // namespace

int64_t estimateNodeNs(const ir::Graph& graph, const ir::Node& node) {
  return static_cast<int64_t>(Estimate(graph, node).ns());
}

}  // namespace abele::plan

// Before:  %gx = aten.mm(%g, %w) {dir=bwd}, %gw = aten.mm(%gt, %x) {dir=bwd}, abele.accumulate(%sum, %gw) {dir=bwd}
// After:   the last two have dir=wgrad: no other stage waits for them, so a zero-bubble schedule may run them late
// Before:  %gx, %gw, %gb = aten.convolution_backward(%g, %x, %w, ..., [true, true, true]) {dir=bwd}
// After:   %gx, _, _ = aten.convolution_backward(%g, %x, %w, ..., [true, false, false]) {dir=bwd}
//          _, %gw, %gb = aten.convolution_backward(%g, %x, %w, ..., [false, true, true]) {dir=wgrad}
// Order:   late; only for schedules that run weight gradients separately.
// Cost:    O(edges).   Undone by: nothing.
#include <algorithm>
#include <string_view>
#include <vector>

#include "ir/rewrite.h"
#include "passes/pass.h"

namespace abele::passes {
namespace {

using ir::Direction;
using ir::Node;
using ir::ValueId;

// Operators that make all the gradients of a layer and can make them in two calls. Their last argument (bool[], one per
// result) selects the gradients: result 0 is for the layer's input, the others are for its parameters. In these
// operators the two kinds are separate work, so two calls take the time of one. test_separable.py checks that each row
// gives the same bits. Normalisations are not here, because both kinds come from the same sums over the gradient: on
// one core, two calls of batch_norm take 1.6 times as long as one, group_norm 1.5, layer_norm 1.15. LSTMs are not here
// either, because mkldnn_rnn_layer_backward has no mask.
constexpr std::string_view kSeparable[] = {"aten::convolution_backward"};

// A backward node is late if only updates, and late nodes of its own stage, read its results. Nodes are in execution
// order, so one walk from the end decides for all of them.
class WeightGradients {
 public:
  explicit WeightGradients(const ir::Graph& graph) : graph_(graph), needed_(graph.values.size(), kNoReader) {}

  /// By node: the whole node is late.
  std::vector<bool> late;
  /// By node: its gradients of parameters are late, the gradient of its input is not, and they can be made separately.
  std::vector<bool> late_parameters;

  void find() {
    for (const ir::Output& output : graph_.outputs)
      if (!isSum(output)) needed_[static_cast<size_t>(graph_.baseOf(output.value))] = kOtherReaders;
    late.assign(graph_.nodes.size(), false);
    late_parameters.assign(graph_.nodes.size(), false);
    for (size_t i = graph_.nodes.size(); i-- > 0;) {
      const Node& node = graph_.nodes[i];
      if (node.is_view || node.direction == Direction::kUpdate) continue;
      late[i] = isLate(node);
      late_parameters[i] = !late[i] && hasLateParameters(node);
      forEachOperand(node, [&](ValueId v) {
        int32_t& needed = needed_[static_cast<size_t>(graph_.baseOf(v))];
        const bool joins = late[i] && (needed == kNoReader || needed == node.stage);
        needed = joins ? node.stage : kOtherReaders;
      });
    }
  }

 private:
  // Who needs a base value: late nodes of one stage (its number), nothing, or any other reader.
  static constexpr int32_t kNoReader = -1, kOtherReaders = -2;

  bool isSum(const ir::Output& output) const {
    return output.kind == ir::OutputKind::kUpdate &&
           graph_.externals[static_cast<size_t>(output.target)].kind != ir::InputKind::kBuffer;
  }

  bool isLate(const Node& node) const {
    if (node.direction != Direction::kBackward && node.direction != Direction::kWeightGrad) return false;
    bool all = true;
    forEachResult(node, [&](ValueId v) { all = all && isLate(v, node.stage); });
    return all;
  }
  bool isLate(ValueId v, int32_t stage) const {
    const int32_t needed = needed_[static_cast<size_t>(graph_.baseOf(v))];
    return needed == kNoReader || needed == stage;
  }

  bool hasLateParameters(const Node& node) const {
    const bool separable = std::find(std::begin(kSeparable), std::end(kSeparable), node.op) != std::end(kSeparable);
    if (!separable || node.direction != Direction::kBackward || !node.writes.empty()) return false;
    // All parameters or none: the operator may choose another kernel for a part of them.
    int parameters = 0;
    for (size_t r = 1; r < node.results.size(); ++r)
      for (ValueId v : node.results[r]) {
        if (v < 0) continue;
        if (!isLate(v, node.stage)) return false;
        ++parameters;
      }
    return parameters > 0 && isMasked(node);
  }
  static bool isMasked(const Node& node) {
    return !node.args.empty() && node.args.back().kind == Arg::Kind::kBoolList &&
           node.args.back().ints.size() == node.results.size() && node.results[0].size() == 1;
  }

  const ir::Graph& graph_;
  std::vector<int32_t> needed_;  // by base value: a stage, kNoReader or kOtherReaders
};

// Takes the gradients of parameters out of a node, and returns the node that makes them.
Node takeParameters(ir::Graph& graph, Node& node) {
  Node late = node;
  late.id = graph.takeNodeId();
  late.direction = Direction::kWeightGrad;
  late.time_ns = node.time_ns / 2;  // as in plan/cost.cc: each half is one convolution
  node.time_ns -= late.time_ns;
  late.results[0][0] = ir::kNone;
  late.args.back().ints[0] = 0;
  for (size_t r = 1; r < node.results.size(); ++r) {
    node.args.back().ints[r] = 0;
    for (ValueId& v : node.results[r]) {
      if (v >= 0) graph.values[static_cast<size_t>(v)].def = late.id;
      v = ir::kNone;
    }
  }
  return late;
}

}  // namespace

Changed splitWeightGradient(ir::Graph& graph, PassContext&) {
  WeightGradients gradients(graph);
  gradients.find();
  Changed changed = Changed::kNo;
  graph.node_id_limit = graph.nextNodeId();
  std::vector<Node> nodes = std::move(graph.nodes);
  graph.nodes.clear();
  for (size_t i = 0; i < nodes.size(); ++i) {
    Node& node = nodes[i];
    if (gradients.late[i] && node.direction != Direction::kWeightGrad) {
      node.direction = Direction::kWeightGrad;
      changed = Changed::kYes;
    }
    if (!gradients.late_parameters[i]) {
      graph.nodes.push_back(std::move(node));
      continue;
    }
    Node late = takeParameters(graph, node);
    graph.nodes.push_back(std::move(node));
    graph.nodes.push_back(std::move(late));
    changed = Changed::kYes;
  }
  return changed;
}

}  // namespace abele::passes

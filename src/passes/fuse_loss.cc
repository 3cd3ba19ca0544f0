// Before:  %p = aten._log_softmax(%x, 1, false)
// After:   abele_op.log_softmax_(%x, 1) writes(0: %x -> %p), if nothing reads the logits later
// Before:  %g = aten.nll_loss_backward(%d, %p, %t, %w, reduction, ignored, %n) {dir=bwd},
//          %dx = aten._log_softmax_backward_data(%g, %p, 1, 6) {dir=bwd}
// After:   abele_op.cross_entropy_backward_(%d, %p, %t, %w, reduction, ignored, %n) writes(1: %p -> %dx) {dir=bwd}
//          Logits, log-probabilities and the gradient of the logits then share one piece of memory instead of three.
//          The gradient of the log-probabilities is zero except for one element a row, and is never written as a whole.
// Order:   after recompute, which repeats forward nodes, but no node that writes.
// Cost:    O(edges).   Undone by: the plan, which copies a value that is read later after all.
#include <algorithm>
#include <string_view>
#include <vector>

#include "ir/rewrite.h"
#include "passes/pass.h"

namespace abele::passes {
namespace {

using ir::Node;
using ir::ValueId;

class LossFusion {
 public:
  explicit LossFusion(ir::Graph& graph)
      : graph_(graph),
        position_(ir::positionsById(graph)),
        readers_(graph.values.size()),
        is_output_(graph.values.size(), false) {}

  Changed run() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i)
      if (!graph_.nodes[i].is_view)
        ir::forEachOperand(graph_.nodes[i],
                           [&](ValueId v) { readers_[index(graph_.baseOf(v))].push_back(static_cast<int32_t>(i)); });
    for (const ir::Output& output : graph_.outputs) is_output_[index(graph_.baseOf(output.value))] = true;
    std::vector<bool> joined(graph_.nodes.size(), false);
    bool has_joined = false, has_changed = false;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const auto position = static_cast<int32_t>(i);
      if (const int32_t maker = gradientOfRows(position); maker != ir::kNone) {
        joinBackward(graph_.nodes[i], graph_.nodes[index(maker)]);
        joined[index(maker)] = has_joined = true;
      } else if (mayOverwriteLogits(position)) {
        overwriteLogits(graph_.nodes[i]);
        has_changed = true;
      }
    }
    if (has_joined) ir::removeNodes(graph_, joined);
    return has_joined || has_changed ? Changed::kYes : Changed::kNo;
  }

 private:
  static size_t index(int32_t i) { return static_cast<size_t>(i); }
  static bool isTensor(const Arg& arg) { return arg.kind == Arg::Kind::kId && arg.i >= 0; }
  const ir::Value& valueOf(const Arg& arg) const { return graph_.values[index(static_cast<ValueId>(arg.i))]; }
  static bool sameTask(const Node& a, const Node& b) { return a.stage == b.stage && a.direction == b.direction; }

  static bool isOver(const Node& node, std::string_view op, size_t arguments) {
    return node.op == op && node.args.size() == arguments && node.results.size() == 1 && node.results[0].size() == 1 &&
           node.results[0][0] >= 0 && node.writes.empty();
  }

  // True for a value that a node of this graph makes and whose rows are dense. float16 stays as it is, because
  // stochastic rounding gives other numbers for every operator that makes it.
  bool isRows(const Arg& arg) const {
    if (!isTensor(arg)) return false;
    const ir::Value& value = valueOf(arg);
    const DType dtype = value.type.dtype;
    return value.base == arg.i && value.def != ir::kNone && !value.type.sizes.empty() &&
           value.type == contiguousType(dtype, value.type.sizes) &&
           (dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kBFloat16);
  }
  static bool isLast(const Arg& dim, const Type& type) {
    const auto dims = static_cast<int64_t>(type.sizes.size());
    return dim.kind == Arg::Kind::kInt && (dim.i == dims - 1 || dim.i == -1);
  }

  // Whether all other readers of the value are done before the node at `position` runs.
  bool diesAt(ValueId value, int32_t position) const {
    const Node& last = graph_.nodes[index(position)];
    const std::vector<int32_t>& readers = readers_[index(value)];
    return std::all_of(readers.begin(), readers.end(), [&](int32_t reader) {
      const Node& node = graph_.nodes[index(reader)];
      return node.stage == last.stage && reader <= position && node.direction <= last.direction;
    });
  }

  bool mayOverwriteLogits(int32_t position) const {
    const Node& node = graph_.nodes[index(position)];
    if (!isOver(node, "aten::_log_softmax", 3) || !isRows(node.args[0])) return false;
    const ir::Value& logits = valueOf(node.args[0]);
    const Node& maker = graph_.nodes[index(position_[index(logits.def)])];
    return isLast(node.args[1], logits.type) && graph_.values[index(node.results[0][0])].type == logits.type &&
           sameTask(maker, node) && diesAt(static_cast<ValueId>(node.args[0].i), position);
  }

  void overwriteLogits(Node& node) {
    const auto logits = static_cast<ValueId>(node.args[0].i);
    node.op = "abele_op::log_softmax_";
    node.args.pop_back();  // drops half_to_float, which is false if the result has the same type
    write(node, /*arg=*/0, logits);
  }

  // For a node that ends the backward of a loss over rows: the position of the node that begins it.
  int32_t gradientOfRows(int32_t position) const {
    const Node& node = graph_.nodes[index(position)];
    if (!isOver(node, "aten::_log_softmax_backward_data", 4) || !isTensor(node.args[0]) || !isRows(node.args[1]))
      return ir::kNone;
    const auto gradient = static_cast<ValueId>(node.args[0].i);
    const ir::Value& of_loss = valueOf(node.args[0]);
    const ir::Value& log_probs = valueOf(node.args[1]);
    if (of_loss.base != gradient || of_loss.def == ir::kNone || readers_[index(gradient)].size() != 1 ||
        is_output_[index(gradient)])
      return ir::kNone;
    const int32_t begin = position_[index(of_loss.def)];
    const Node& maker = graph_.nodes[index(begin)];
    const bool fits = isOver(maker, "aten::nll_loss_backward", 7) && sameTask(maker, node) && isTensor(maker.args[1]) &&
                      maker.args[1].i == node.args[1].i && log_probs.type.sizes.size() == 2 &&
                      isLast(node.args[2], log_probs.type) &&
                      graph_.values[index(node.results[0][0])].type == log_probs.type;
    return fits && diesAt(static_cast<ValueId>(node.args[1].i), position) ? begin : ir::kNone;
  }

  void joinBackward(Node& node, const Node& maker) {
    const auto log_probs = static_cast<ValueId>(node.args[1].i);
    node.op = "abele_op::cross_entropy_backward_";
    node.args = maker.args;
    node.time_ns += maker.time_ns;
    write(node, /*arg=*/1, log_probs);
  }

  // The node now writes into the memory of `before`, and its result is the new contents.
  void write(Node& node, int32_t arg, ValueId before) {
    const ValueId after = node.results[0][0];
    node.results.clear();
    node.writes = {{.arg = arg,
                    .element = ir::kNone,
                    .view = graph_.values[index(before)].type,
                    .offset = 0,
                    .before = before,
                    .after = after}};
  }

  ir::Graph& graph_;
  std::vector<int32_t> position_;
  std::vector<std::vector<int32_t>> readers_;  // by base value: positions of its readers
  std::vector<bool> is_output_;                // by base value
};

}  // namespace

Changed fuseLoss(ir::Graph& graph, PassContext&) { return LossFusion(graph).run(); }

}  // namespace abele::passes

// Before:  %y = aten.gelu(%x) {stage=0}, aten.gelu_backward(%g, %x) {dir=bwd, stage=0}, %x made by forward
// After:   backward computes %x again from the inputs of the stage, so that only these are kept for it
// Order:   after assign-stages, because it keeps what other stages read; before shard and split-weight-gradient, which
//          treat the copies like all of backward.
// Cost:    O(nodes + copies).   Undone by: nothing.
#include "passes/recompute.h"

#include <algorithm>
#include <vector>

#include "base/instructions.h"
#include "ir/rewrite.h"
#include "passes/pass.h"

namespace abele::passes {
namespace {

using ir::Direction;
using ir::kNone;
using ir::Node;
using ir::ValueId;

// Some values are kept: those that are in the stash anyway because other stages read them, those that the program asked
// to keep, and those that cannot be computed twice. The last are results of nodes that write, or that read something
// that changes between forward and backward.
class Recomputation {
 public:
  Recomputation(ir::Graph& graph, const RecomputeRules& rules)
      : graph_(graph), position_(ir::positionsById(graph)), again_(graph.values.size(), false) {
    const int32_t stages = static_cast<int32_t>(graph.stages.size());
    last_stage_ = rules.last_stage ? stages : stages - 1;
    findChanging();
    for (size_t v = 0; v < again_.size(); ++v) again_[v] = isRepeatable(static_cast<ValueId>(v));
    for (const Node& node : graph.nodes)
      if (!node.is_view) forEachOperand(node, [&](ValueId v) { keepUnlessOf(v, node.stage); });
    for (ValueId v : rules.kept) again_[static_cast<size_t>(graph.baseOf(v))] = false;
    copy_of_.assign(graph.values.size(), kNone);
  }

  const std::vector<bool>& again() const { return again_; }

  Changed run() {
    nodes_.reserve(graph_.nodes.size());
    // A copy is appended to nodes_ when it is needed, so it comes directly before its first reader.
    std::vector<Node> nodes = std::move(graph_.nodes);
    source_ = &nodes;
    for (Node& node : nodes) {
      if (node.direction == Direction::kBackward || node.direction == Direction::kWeightGrad) {
        replaceOperands(node);
        if (node.is_view) moveViews(node);
      }
      nodes_.push_back(node);
    }
    graph_.nodes = std::move(nodes_);
    return changed_;
  }

 private:
  // Finds inputs whose contents a micro-batch changes: running statistics, and weights and arguments that forward
  // writes.
  void findChanging() {
    changing_.assign(graph_.values.size(), false);
    for (const Node& node : graph_.nodes)
      if (node.direction == Direction::kForward)
        for (const ir::Write& w : node.writes) changing_[static_cast<size_t>(graph_.baseOf(w.before))] = true;
  }

  const Node* makerOf(ValueId v) const {
    const ir::NodeId def = graph_.values[static_cast<size_t>(v)].def;
    return def == kNone ? nullptr : &graph_.nodes[static_cast<size_t>(position_[static_cast<size_t>(def)])];
  }
  bool isInput(ValueId base) const { return graph_.values[static_cast<size_t>(base)].def == kNone; }

  bool isRepeatable(ValueId v) const {
    if (graph_.baseOf(v) != v || isInput(v)) return false;
    const Node& node = *makerOf(v);
    if (node.direction != Direction::kForward || node.stage >= last_stage_ || isOwn(node.op)) return false;
    bool repeatable = true;
    forEachOperand(node, [&](ValueId operand) {
      const ValueId base = graph_.baseOf(operand);
      const bool changes = isInput(base) ? changing_[static_cast<size_t>(base)] : startsAtInput(base);
      repeatable = repeatable && !changes;
    });
    for (const ir::Write& w : node.writes) repeatable = repeatable && !startsAtInput(w.before);
    return repeatable;
  }

  // Whether this value is an input, or an input after one or more writes.
  bool startsAtInput(ValueId v) const {
    for (ValueId base = graph_.baseOf(v);;) {
      if (isInput(base)) return true;
      const Node& node = *makerOf(base);
      auto write = std::find_if(node.writes.begin(), node.writes.end(), [&](const auto& w) { return w.after == base; });
      if (write == node.writes.end()) return false;
      base = graph_.baseOf(write->before);
    }
  }

  void keepUnlessOf(ValueId v, int32_t stage) {
    const ValueId base = graph_.baseOf(v);
    const Node* maker = makerOf(base);
    if (maker != nullptr && maker->stage != stage) again_[static_cast<size_t>(base)] = false;
  }

  // --- copies --------------------------------------------------------------------------------------------------------
  void replaceOperands(Node& node) {
    for (Arg& arg : node.args) forEachId(arg, [&](int64_t& id) { id = copyOf(static_cast<ValueId>(id)); });
    for (ir::Write& w : node.writes) w.before = copyOf(w.before);
  }

  // A view that backward takes of a forward value moves to the value's copy.
  void moveViews(const Node& node) {
    forEachResult(node, [&](ValueId v) {
      const ValueId base = copyOf(graph_.baseOf(v));
      graph_.values[static_cast<size_t>(v)].base = base;
    });
  }

  bool isMadeAgain(ValueId v) const {
    const size_t base = static_cast<size_t>(graph_.baseOf(v));
    return base < again_.size() && again_[base];
  }

  // The value that backward computes again, or the value itself if it is kept.
  ValueId copyOf(ValueId v) {
    if (static_cast<size_t>(v) >= copy_of_.size() || !isMadeAgain(v)) return v;
    if (copy_of_[static_cast<size_t>(v)] == kNone) {
      const ir::NodeId def = graph_.values[static_cast<size_t>(v)].def;
      const Node& maker = (*source_)[static_cast<size_t>(position_[static_cast<size_t>(def)])];
      // A view that backward itself made has moved to its new base already, or will soon.
      if (maker.direction != Direction::kForward) return v;
      copyNode(maker);
    }
    return copy_of_[static_cast<size_t>(v)];
  }

  void copyNode(const Node& original) {
    Node node = original;
    replaceOperands(node);
    node.id = graph_.takeNodeId();
    node.direction = Direction::kBackward;
    auto copyValue = [&](ValueId& v) {
      if (v < 0) return;
      const ir::Value value = graph_.values[static_cast<size_t>(v)];
      const ValueId copy = value.base == v ? graph_.addValue(value.type, node.id)
                                           : graph_.addView(value.type, node.id, copyOf(value.base), value.offset);
      copy_of_[static_cast<size_t>(v)] = copy;
      v = copy;
    };
    for (auto& group : node.results)
      for (ValueId& v : group) copyValue(v);
    for (ir::Write& w : node.writes) copyValue(w.after);
    nodes_.push_back(std::move(node));
    changed_ = Changed::kYes;
  }

  ir::Graph& graph_;
  std::vector<int32_t> position_;  // position of each node, by id
  std::vector<bool> again_;        // by value: a base that backward computes again
  std::vector<bool> changing_;     // by value
  std::vector<ValueId> copy_of_;   // by value
  std::vector<Node> nodes_;
  const std::vector<Node>* source_ = nullptr;
  int32_t last_stage_ = 0;
  Changed changed_ = Changed::kNo;
};

}  // namespace

std::vector<bool> repeatableValues(const ir::Graph& graph, const RecomputeRules& rules) {
  ir::Graph copy = graph;  // read only
  return Recomputation(copy, rules).again();
}

Changed recompute(ir::Graph& graph, PassContext& context) {
  if (!context.recompute.enabled || !graph.training) return Changed::kNo;
  return Recomputation(graph, context.recompute).run();
}

}  // namespace abele::passes

// Before:  %gx = aten.mm(%g, %w) {dir=bwd}, %gw = aten.mm(%gt, %x) {dir=bwd}, abele.accumulate(%sum, %gw) {dir=bwd}
// After:   the last two have dir=wgrad: no other stage waits for them, so a zero-bubble schedule may run them late
// Order:   after lower-optimizer, whose accumulate nodes it moves; only for schedules with weight gradients of their
// own. Cost:    O(edges).   Undone by: nothing.
#include <algorithm>
#include <vector>

#include "ir/graph.h"
#include "passes/pass.h"

namespace abele::passes {
namespace {

using ir::Direction;
using ir::Node;
using ir::ValueId;

// Late: a backward node whose results nobody reads but updates and late nodes of its own stage. Nodes are in execution
// order, so one walk from the end decides all.
class WeightGradients {
 public:
  explicit WeightGradients(const ir::Graph& graph) : graph_(graph), needed_(graph.values.size(), kNobody) {}

  std::vector<bool> find() {
    for (const ir::Output& output : graph_.outputs)
      if (!isSum(output)) needed_[static_cast<size_t>(graph_.baseOf(output.value))] = kEverybody;
    std::vector<bool> late(graph_.nodes.size(), false);
    for (size_t i = graph_.nodes.size(); i-- > 0;) {
      const Node& node = graph_.nodes[i];
      if (node.is_view || node.direction == Direction::kUpdate) continue;
      late[i] = isLate(node);
      forEachOperand(node, [&](ValueId v) {
        int32_t& needed = needed_[static_cast<size_t>(graph_.baseOf(v))];
        const bool joins = late[i] && (needed == kNobody || needed == node.stage);
        needed = joins ? node.stage : kEverybody;
      });
    }
    return late;
  }

 private:
  // Who needs a base value: a stage's late nodes, or else.
  static constexpr int32_t kNobody = -1, kEverybody = -2;

  bool isSum(const ir::Output& output) const {
    return output.kind == ir::OutputKind::kUpdate &&
           graph_.externals[static_cast<size_t>(output.target)].kind != ir::InputKind::kBuffer;
  }

  bool isLate(const Node& node) const {
    if (node.direction != Direction::kBackward && node.direction != Direction::kWeightGrad) return false;
    bool late = true;
    forEachResult(node, [&](ValueId v) {
      const int32_t needed = needed_[static_cast<size_t>(graph_.baseOf(v))];
      late = late && (needed == kNobody || needed == node.stage);
    });
    return late;
  }

  const ir::Graph& graph_;
  std::vector<int32_t> needed_;  // by base value: a stage, kNobody or kEverybody
};

}  // namespace

Changed splitWeightGradient(ir::Graph& graph, PassContext&) {
  const std::vector<bool> late = WeightGradients(graph).find();
  Changed changed = Changed::kNo;
  for (size_t i = 0; i < late.size(); ++i) {
    if (!late[i] || graph.nodes[i].direction == Direction::kWeightGrad) continue;
    graph.nodes[i].direction = Direction::kWeightGrad;
    changed = Changed::kYes;
  }
  return changed;
}

}  // namespace abele::passes

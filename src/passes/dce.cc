// Before:  nodes whose results reach no output, and constants that nothing reads
// After:   they are gone; random_draws of the graph and the offsets of the other random nodes stay, so that every node
//          keeps its part of the random stream; if the number of draws of a node depends on values, all random nodes
//          stay
// Order:   after passes that leave values unread; before assign-stages.
// Cost:    O(operands).   Undone by: nothing.
#include <algorithm>

#include "ir/rewrite.h"
#include "passes/pass.h"

namespace abele::passes {
namespace {

// An operator without results and writes runs for its effect, for example an assertion on the device.
bool hasEffect(const ir::Node& node) { return node.results.empty() && node.writes.empty(); }

}  // namespace

Changed removeDeadNodes(ir::Graph& graph, PassContext&) {
  std::vector<bool> live(graph.values.size(), false);
  auto need = [&](ir::ValueId v) { live[v] = live[graph.baseOf(v)] = true; };
  for (const ir::Output& output : graph.outputs) need(output.value);

  const bool keeps_random =
      std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const ir::Node& node) { return node.draws_vary; });
  std::vector<bool> remove(graph.nodes.size(), false);
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const ir::Node& node = graph.nodes[i];
    bool needed = hasEffect(node) || (keeps_random && node.isRandom());
    ir::forEachResult(node, [&](ir::ValueId v) { needed = needed || live[v]; });
    remove[i] = !needed;
    if (!needed) continue;
    ir::forEachOperand(node, need);
    // An unread result still names its base, so the base stays.
    ir::forEachResult(node, [&](ir::ValueId v) { live[graph.baseOf(v)] = true; });
  }
  bool changed = std::find(remove.begin(), remove.end(), true) != remove.end();
  if (changed) ir::removeNodes(graph, remove);

  // Externals keep their numbers, because the host's table of constants has the same order.
  std::erase_if(graph.inputs, [&](const ir::Input& input) {
    if (input.kind != ir::InputKind::kConstant || live[input.value]) return false;
    ir::forgetValue(graph, input.value);
    return changed = true;
  });
  return changed ? Changed::kYes : Changed::kNo;
}

}  // namespace abele::passes

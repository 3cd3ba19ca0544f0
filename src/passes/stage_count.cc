#include "passes/stage_count.h"

namespace abele::passes {

int forwardStageCount(const ir::Graph& graph, int group) {
  int count = 0;
  int32_t active = ir::kNone;
  for (const ir::Node& node : graph.nodes) {
    // A node outside every block got its stage from a neighbour, and a view does no work, so neither activates a stage.
    const bool in_block = node.block != ir::kNone || graph.blocks.size() <= 1;
    if (node.direction != ir::Direction::kForward || node.stage == ir::kNone || !in_block || node.is_view) continue;
    const int32_t device = graph.stages[node.stage].device / group;
    if (device != active) ++count;
    active = device;
  }
  return count == 0 ? 1 : count;
}

}  // namespace abele::passes

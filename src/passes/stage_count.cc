#include "passes/stage_count.h"

namespace abele::passes {

int forwardStageCount(const ir::Graph& graph) {
  int count = 1;
  int32_t active = 0;
  for (const ir::Node& node : graph.nodes) {
    // A node outside every block took its stage from a neighbour; it activates nothing.
    bool in_block = node.block != ir::kNone || graph.blocks.size() <= 1;
    if (node.direction != ir::Direction::kForward || node.stage == ir::kNone || !in_block) continue;
    int32_t device = graph.stages[node.stage].device;
    if (device != active) ++count;
    active = device;
  }
  return count;
}

}  // namespace abele::passes

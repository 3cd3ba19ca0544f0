// Assigns the user's blocks to stages by the rules in the options, and counts stages. Used by assign_stages.cc, and by
// compile/ for the minimum of micro-batches (E0401).
#pragma once

#include <vector>

#include "passes/pass.h"

namespace abele::passes {

/// A stage in the user's numbering, which may have gaps, and the devices of the block.
struct AskedStage {
  int number = 0;
  std::vector<int32_t> devices = {0};  // several devices share its work
};

/// By block index. Under AutoSplit, which ignores blocks, there is one entry. Throws E0304, E0305, E0702.   Source:
/// spec options.md section 9.2.
std::vector<AskedStage> askedStages(const ir::Graph& graph, const StageRules& rules);

/// F: the number of stages that run something in forward. A return to an earlier device counts again; consecutive
/// blocks on one device, or on devices of one group, count once.
/// Requires: form kStaged.   Source: spec options.md section 9.3.
int forwardStageCount(const ir::Graph& graph);

/// Whether some stages have several devices, so that pass shard divides their work.
bool dividesStages(const ir::Graph& graph, const StageRules& rules);

}  // namespace abele::passes

// Turns the user's blocks into the stages that the user asked for. Used by assign_stages.cc.
#pragma once

#include <vector>

#include "passes/pass.h"

namespace abele::passes {

/// A stage in the user's numbering, which may have gaps, and the device of the block.
struct AskedStage {
  int number = 0;
  int device = 0;
};

/// By block index. Under AutoSplit, which ignores blocks, there is one entry. Throws E0304, E0305.   Source: spec
/// options.md section 9.2.
std::vector<AskedStage> askedStages(const ir::Graph& graph, const StageRules& rules);

}  // namespace abele::passes

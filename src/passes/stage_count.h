// Counts the stages of a staged graph's pipeline. Used by compile/ for the minimum of micro-batches (E0401).
#pragma once

#include "ir/graph.h"

namespace abele::passes {

/// F: the number of stages that run something in forward. Returning to a device counts again; consecutive blocks on one
/// device count once, and so do those on devices of one group.
/// Requires: form kStaged.   Source: spec options.md section 9.3.
int forwardStageCount(const ir::Graph& graph, int group = 1);

}  // namespace abele::passes

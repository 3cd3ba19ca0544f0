// Which values the pass `recompute` can make again, for those who choose among them.
#pragma once

#include <vector>

#include "passes/pass.h"

namespace abele::passes {

/// By value id: bases that backward makes again under these rules wherever it reads them. graph: form lowered, before
/// the pass.
std::vector<bool> repeatableValues(const ir::Graph& graph, const RecomputeRules& rules);

}  // namespace abele::passes

// The values that the pass `recompute` can compute again, for code that chooses among them.
#pragma once

#include <vector>

#include "passes/pass.h"

namespace abele::passes {

/// By value id: the bases that backward computes again under these rules wherever it reads them. graph: form lowered,
/// before the pass.
std::vector<bool> repeatableValues(const ir::Graph& graph, const RecomputeRules& rules);

}  // namespace abele::passes

// What one operator takes, by its name and the shapes of its operands. Used by cost.cc and split_chain.cc.
#pragma once

#include <cstdint>

#include "ir/graph.h"

namespace abele::plan {

/// On a described machine (constants in the .cc). Equal nodes cost the same.
int64_t estimateNs(const ir::Graph& graph, const ir::Node& node);

}  // namespace abele::plan

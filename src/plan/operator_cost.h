// Estimates the time of one operator on a described machine. It depends on shapes alone, so that equal programs get
// equal plans.
#pragma once

#include "ir/graph.h"

namespace abele::plan {

/// Adds up bytes moved (20 GB/s), arithmetic of products, convolutions, attention and recurrent layers (50 Gflop/s),
/// extra time for each element of expensive functions, random numbers, and 1 us an operator.
int64_t estimateNodeNs(const ir::Graph& graph, const ir::Node& node);

}  // namespace abele::plan

// How long one operator takes on a described machine: a function of its shapes, so that equal programs get equal plans.
#pragma once

#include "ir/graph.h"

namespace abele::plan {

/// By bytes moved (20 GB/s), operations of products, convolutions, attention and recurrent layers (50 Gflop/s),
/// elements of what computes much for each, random numbers, and 1 us an operator.
int64_t estimateNodeNs(const ir::Graph& graph, const ir::Node& node);

}  // namespace abele::plan

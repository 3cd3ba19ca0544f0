// How long one operator takes on a described machine: a function of its shapes, so that equal programs get equal plans.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace abele::plan {

/// By bytes moved (20 GB/s), operations of products, convolutions, attention and recurrent layers (50 Gflop/s),
/// elements of what computes much for each, random numbers, and 1 us an operator.
int64_t estimateNodeNs(const ir::Graph& graph, const ir::Node& node);

/// The part of estimateNodeNs that one call over several micro-batches takes once for all of them: what every call
/// takes beside its work, and moving the bytes that they share. The work itself is theirs, one by one.
/// varies: by base value, whether each micro-batch has its own.
int64_t estimateSharedNs(const ir::Graph& graph, const ir::Node& node, const std::vector<bool>& varies);

}  // namespace abele::plan

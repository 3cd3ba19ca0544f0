// Finds what depends on the strides of a buffer. Used by recorder.cc.
#pragma once

#include "ir/graph.h"

namespace abele::capture {

/// The first node whose results may have other elements if an input of the graph has other strides: kernels add up in
/// the order of memory. Null if all results keep their elements; input may be kNone. Views and operators that compute
/// each element alone (exact_elements.def) hand strides on.
const ir::Node* firstReaderOfStrides(const ir::Graph& graph, ir::ValueId input);

}  // namespace abele::capture

// Shrinks a graph in which a mistake appears. Used by tools/abele-opt.
#pragma once

#include <functional>

#include "ir/graph.h"
#include "ir/verify.h"

namespace abele::passes {

/// Finds a smaller graph that still makes `shows` true. Drops outputs, nodes, results, inputs, externals, blocks,
/// stages and names, in halves and then one by one (delta debugging), until no more can be dropped. A reader of a
/// dropped value reads an earlier value of the same type or a new argument.
/// Requires: the graph satisfies the rules of `form`, and shows(graph). `shows` is called only for graphs that satisfy
/// them, and never twice for the same text.
/// Returns: a graph that no longer shows it when any part is dropped. Deterministic if `shows` is.
/// Source:   Zeller and Hildebrandt 2002, "Simplifying and isolating failure-inducing input".
ir::Graph reduceGraph(ir::Graph graph, ir::Form form, const std::function<bool(const ir::Graph&)>& shows);

}  // namespace abele::passes

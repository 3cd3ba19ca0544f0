// Shrinks a graph that shows a mistake. Used by tools/abele-opt.
#pragma once

#include <functional>

#include "ir/graph.h"
#include "ir/verify.h"

namespace abele::passes {

/// A smaller graph that still shows what `shows` looks for. Drops outputs, nodes, results, inputs, externals, blocks,
/// stages and names, in halves and then one by one (delta debugging), until nothing more can go. What read a dropped
/// value reads an earlier one of the same type or a new argument.
/// Requires: the graph keeps the rules of `form`, and shows(graph). `shows` is asked only about graphs that keep them,
///           and never twice about the same text.
/// Returns:  a graph of which no single part can be dropped. Deterministic if `shows` is.
/// Source:   Zeller and Hildebrandt 2002, "Simplifying and isolating failure-inducing input".
ir::Graph reduceGraph(ir::Graph graph, ir::Form form, const std::function<bool(const ir::Graph&)>& shows);

}  // namespace abele::passes

// The operators of forward that depend on constants alone, and the places where they should run. Used by passes/ and
// split/.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace abele::ir {

/// For each node by position: true if it is an operator of forward, not a view, that depends on no argument, parameter
/// or buffer.
std::vector<bool> constantForward(const Graph& graph);

/// Sets the places of those operators of forward that have none yet, except views. An operator gets the place of its
/// first reader in forward, so that its result need not be transferred. An operator without such a reader gets its
/// place in the program's order. places: by position; the function replaces kNone. made_in: by position, the places in
/// the program's order.
void placeAtFirstReader(const Graph& graph, const std::vector<int32_t>& made_in, std::vector<int32_t>& places);

}  // namespace abele::ir

// The part of forward that depends on constants alone, and the place where that work belongs. Used by passes/ and
// plan/.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace abele::ir {

/// For each node by position, whether it is an operator of forward (no view) that depends on no argument, parameter or
/// buffer.
std::vector<bool> constantForward(const Graph& graph);

/// Gives a place to the operators of forward (no views) that have none yet. An operator goes where forward first needs
/// it, so that nothing has to be handed over. An operator that forward does not read stays where the program made it.
/// places: by position, kNone where a place is wanted; made_in: by position, the places in the order of the program.
void placeAtFirstReader(const Graph& graph, const std::vector<int32_t>& made_in, std::vector<int32_t>& places);

}  // namespace abele::ir

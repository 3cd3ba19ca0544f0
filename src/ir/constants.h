// What forward computes from constants alone, and where such work belongs. Used by passes/ and plan/.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace abele::ir {

/// By position: operators of forward (no views) that depend on no argument, parameter or buffer.
std::vector<bool> constantForward(const Graph& graph);

/// Places the operators of forward (no views) that have no place yet: where forward first needs them, so that nothing
/// has to be handed over; what forward does not read stays where the program made it.
/// places: by position, kNone for those to be placed; made_in: by position, their places in the order of the program.
void placeAtFirstReader(const Graph& graph, const std::vector<int32_t>& made_in, std::vector<int32_t>& places);

}  // namespace abele::ir

// Steps of a program that is not the session's own, for placements that are measured (compile/measured_placement.h).
#pragma once

#include <vector>

#include "compile/measured_placement.h"

namespace abele::host {

/// Brings the program to devices with copies of the model's weights, and takes steps there until their median can be
/// trusted: three or more in half a second, fewer where one takes long. The model, its random stream and the inputs
/// stay as they are. Throws what loading and running throw.
PlacementTrial timeTrial(const Program& program, MadeProgram made, const ProgramOptions& options,
                         const std::vector<at::Tensor>& inputs);

}  // namespace abele::host

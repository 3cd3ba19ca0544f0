// Runs steps of a program other than the session's, to measure a placement (compile/measured_placement.h).
#pragma once

#include <vector>

#include "compile/measured_placement.h"

namespace abele::session {

/// Loads the program onto devices with copies of the model's weights, and runs steps until their median is reliable: at
/// least three steps in half a second, fewer if one takes long. The model, its random stream and the inputs do not
/// change. Throws the errors of loading and running.
compile::PlacementTrial timeTrial(const compile::Program& program, compile::MadeProgram made,
                                  const compile::ProgramOptions& options, const std::vector<at::Tensor>& inputs);

}  // namespace abele::session

// Conversions between abele::optim and the OptimizerSpec of a compiled program.
#pragma once

#include <vector>

#include "abele/optim.h"
#include "compile/program_options.h"
#include "modules/module.h"
#include "optimizer/optimizer_constants.h"

namespace abele::optimizer {

// optimizer.cc
/// Throws E0706 for values that torch refuses, for groups without a parameter, and for parameters in two groups.
compile::OptimizerSpec optimizerSpec(const optim::Optimizer& optimizer,
                                     const std::vector<modules::NamedTensor>& tensors);

/// The optimizer that makes this spec. Requires: the spec has an optimizer.
optim::Optimizer optimizerOf(const compile::OptimizerSpec& spec);

/// The values that a program compiled with this optimizer fixes. scaling_varies: as in OptimizerSource::constants().
OptimizerConstants constantsOf(const optim::Optimizer& optimizer, bool scaling_varies);

}  // namespace abele::optimizer

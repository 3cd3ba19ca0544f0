// The numbers of an optimizer's groups as text in a checkpoint, because schedulers change them.
#pragma once

#include <string>

#include "session/session.h"

namespace abele::optimizer {

std::string textOfNumbers(const compile::OptimizerSpec& spec);
/// The spec with the numbers of the text. Throws E0706 if the text has other groups.
compile::OptimizerSpec withNumbers(compile::OptimizerSpec spec, const std::string& text);

}  // namespace abele::optimizer

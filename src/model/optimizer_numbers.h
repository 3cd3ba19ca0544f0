// The numbers of an optimizer's groups, which schedulers change, as text in a checkpoint.
#pragma once

#include <string>

#include "session/session.h"

namespace abele::host {

std::string textOfNumbers(const OptimizerSpec& spec);
/// The spec with the numbers of the text. Throws E0706 if the text has other groups.
OptimizerSpec withNumbers(OptimizerSpec spec, const std::string& text);

}  // namespace abele::host

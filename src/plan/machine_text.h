// Writes a machine as the text that parseMachine() reads.
#pragma once

#include <string>

#include "plan/links.h"

namespace abele::plan {

/// The text is one line.
std::string machineText(const Machine& machine);

}  // namespace abele::plan

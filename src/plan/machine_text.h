// A machine as the text that parseMachine() reads.
#pragma once

#include <string>

#include "plan/links.h"

namespace abele::plan {

/// In one line.
std::string machineText(const Machine& machine);

}  // namespace abele::plan

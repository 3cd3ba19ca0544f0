// Writes a machine as the text that parseMachine() reads.
#pragma once

#include <string>

#include "schedule/links.h"

namespace abele::schedule {

/// The text is one line.
std::string machineText(const Machine& machine);

}  // namespace abele::schedule

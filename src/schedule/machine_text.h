// Writes a machine as the text that parseMachine() reads, and its links for people.
#pragma once

#include <string>

#include "schedule/links.h"

namespace abele::schedule {

/// The text is one line.
std::string machineText(const Machine& machine);
/// "within a host 3.210 us and 12.900 GB/s, between hosts ..."
std::string linksText(const Machine& machine);

}  // namespace abele::schedule

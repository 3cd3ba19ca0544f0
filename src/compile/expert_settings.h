// Which expert settings (Popart().set, _Popart.set) a program honours. The table is options.json.
#pragma once

#include <string>
#include <vector>

#include "compile/program_options.h"
#include "options/value.h"

namespace abele::host {

/// Throws E0702 for a setting whose value would change results and is not what the program does.
/// Requires: names and kinds are valid. Returns: the hints among the settings, which have no effect.
std::vector<std::string> requireAvailable(const OptionMap& settings, const ProgramOptions& session);

}  // namespace abele::host

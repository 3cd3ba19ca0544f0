// Which expert settings (Popart().set, _Popart.set) a program honours. The table is options.json.
#pragma once

#include <string>
#include <vector>

#include "compile/program_options.h"
#include "options/value.h"

namespace abele::compile {

/// Throws E0702 for a setting that asks for other results than the program gives. Requires: names and kinds are valid.
/// Returns: the settings that are only hints and have no effect.
std::vector<std::string> requireAvailable(const options::OptionMap& settings, const ProgramOptions& session);

}  // namespace abele::compile

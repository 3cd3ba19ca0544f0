// Separates options that also apply to a compiled program from those that are part of it. Source: spec executor.md
// section 7.1, load().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options/store.h"

namespace abele::options {

/// Resets all options and expert settings that are part of a program, and the strategy, to their compiled values.
/// Returns: the names of those that had other values.
std::vector<std::string> keepCompiled(Options::Values& now, const Options::Values& compiled);
/// Returns true if this value of the group Distributed is part of a program. All other values identify this process.
bool isOfProgram(const std::string& distributed);
/// Options for a file, as JSON. Leaves out the number of this process and of all processes, which differ between runs.
std::string textOfSaved(Options::Values values);
/// The options of a file, adapted to run its program here. If the program was compiled without devices, it uses those
/// of this machine. text: from textOfSaved(); empty: defaults. Throws E0501 if the text is not valid.
Options::Values savedOptions(const std::string& text);
/// Gives a file's options this process's rank. The number of processes may differ from the compiled one.
/// process, processes: the index and number of processes that the program was compiled for.
void takePlaceHere(Options::Values& saved, int64_t process, int64_t processes);
/// The names in `kept` that `chosen` sets to another value than the default, to warn that they have no effect.
std::vector<std::string> chosenInVain(const std::vector<std::string>& kept, const Options::Values& chosen);

}  // namespace abele::options

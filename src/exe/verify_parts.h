// The parts of exe::verify that look things up by id. Private to exe/.
#pragma once

#include <string>
#include <vector>

#include "exe/executable.h"

namespace abele::exe {

/// Arguments of instructions of our own ("abele::..."): kinds, numbers and types, as their rows have them
/// (base/instructions.h). Requires: all ids are good.
void checkOwnInstructions(const Executable& executable, std::vector<std::string>& findings);

/// Lists of actions: every task once, by one worker, with that worker's memory, and none that waits for ever.
/// Requires: all ids are good.
void checkActions(const Executable& executable, std::vector<std::string>& findings);

}  // namespace abele::exe

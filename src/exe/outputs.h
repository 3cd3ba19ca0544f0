// Finds the process that makes each result.
#pragma once

#include <cstdint>
#include <vector>

#include "exe/executable.h"

namespace abele::exe {

/// By result (Executable::output_slots): the process, of stage_processes, whose worker makes it; -1: no process makes
/// it.
std::vector<int32_t> processesOfOutputs(const Executable& executable);

}  // namespace abele::exe

// Which process makes which result.
#pragma once

#include <cstdint>
#include <vector>

#include "exe/executable.h"

namespace abele::exe {

/// By result (Executable::output_slots): which of stage_processes has the worker that makes it; -1: none makes it.
std::vector<int32_t> processesOfOutputs(const Executable& executable);

}  // namespace abele::exe

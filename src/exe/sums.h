// Gradient sums over processes: who adds them up, and when.
#pragma once

#include "exe/executable.h"

namespace abele::exe {

/// A link from its space to itself adds up gradient sums with other processes while the others compute.
inline bool addsUp(const WorkerProgram& worker) { return worker.from >= 0 && worker.from == worker.to; }

}  // namespace abele::exe

// Which workers add up gradient sums over processes.
#pragma once

#include "exe/executable.h"

namespace abele::exe {

/// True for a link from its space to itself: it adds up gradient sums with other processes while other workers compute.
inline bool addsUp(const WorkerProgram& worker) { return worker.from >= 0 && worker.from == worker.to; }

}  // namespace abele::exe

// Plan + Graph -> Executable: the only place that sees all three.
#pragma once

#include "exe/executable.h"
#include "ir/graph.h"
#include "plan/plan.h"

namespace abele::exe {

Executable build(const ir::Graph& graph, const plan::Plan& plan);

}  // namespace abele::exe

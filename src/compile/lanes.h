// How many micro-batches a program works on side by side (docs/executable.md). Used by compiler.cc.
#pragma once

#include <string>

#include "compile/program_options.h"
#include "ir/graph.h"
#include "plan/plan.h"

namespace abele::host {

struct LaneChoice {
  plan::Plan plan;
  std::string reason;  // why there are no more lanes, or how many were taken
};
/// The plan of a lowered graph with the number of lanes that options.lanes asks for, or one chosen by estimated costs,
/// which are the same on every machine. watched: somebody looks at the values of each micro-batch.
LaneChoice planWithLanes(const ir::Graph& graph, const plan::PlanOptions& planned, const ProgramOptions& options,
                         bool watched);

}  // namespace abele::host

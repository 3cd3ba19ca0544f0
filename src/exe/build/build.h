// Plan + Graph -> Executable: the only place that sees all three.
#pragma once

#include "exe/executable.h"
#include "ir/graph.h"
#include "plan/plan.h"

namespace abele::exe {

/// Replicas that have a value of a parameter of their own, with its gradient sum and optimizer state.
struct ParameterGroups {
  std::string parameter;
  std::vector<int32_t> first_of;  // by replica: the first replica of those that it shares the value with
};
/// How often the program of a plan runs side by side in one process.
struct Replication {
  int64_t replicas = 1;
  std::vector<int32_t> input_part = {};          // by replica; as in Executable
  std::vector<ParameterGroups> parameters = {};  // those that are not named are shared by all
};

Executable build(const ir::Graph& graph, const plan::Plan& plan, const Replication& replication = {});

}  // namespace abele::exe

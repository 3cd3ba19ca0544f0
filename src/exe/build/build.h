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
/// PopART's default.
inline constexpr int64_t kMinElementsForSharding = 8192;
/// Replicated tensor sharding: parameters (or their optimizer state) of that many elements or more lie in the memory of
/// one replica each, which runs their updates. Bits stay the same: an update sees its whole tensor.
struct ShardingRules {
  bool weights = false, states = false;
  int64_t min_weight_elements = kMinElementsForSharding, min_state_elements = kMinElementsForSharding;
};
/// How often the program of a plan runs side by side in one process.
struct Replication {
  int64_t replicas = 1;
  int64_t processes = 1;                         // that do so and add up their gradient sums
  std::vector<int32_t> input_part = {};          // by replica; as in Executable
  std::vector<ParameterGroups> parameters = {};  // those that are not named are shared by all
  ShardingRules sharding = {};
  /// Devices of the replica in each process: a replica with more lies in several. 0: a process has all.
  int64_t devices_per_process = 0;
};

/// Which value of the graph a slot holds behind an instruction that computes it.
struct Origin {
  int32_t slot = -1;
  ir::ValueId value = ir::kNone;
};
/// By segment of replica 0 and instruction.
using Origins = std::vector<std::vector<std::vector<Origin>>>;

/// origins: filled where it is not null.
Executable build(const ir::Graph& graph, const plan::Plan& plan, const Replication& replication = {},
                 Origins* origins = nullptr);

}  // namespace abele::exe

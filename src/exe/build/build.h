// Makes the executable of a plan and its graph. Only this folder includes all three.
#pragma once

#include "exe/executable.h"
#include "ir/graph.h"
#include "plan/plan.h"

namespace abele::exe {

/// Groups of replicas that share one value of a parameter, with its gradient sum and optimizer state.
struct ParameterGroups {
  std::string parameter;
  std::vector<int32_t> first_of;  // by replica: the first replica of its group
};
/// PopART's default.
inline constexpr int64_t kMinElementsForSharding = 8192;
/// Replicated tensor sharding: a parameter (or its optimizer state) with at least this many elements is in one
/// replica's memory, and that replica runs its update. Bits stay the same, because an update sees its whole tensor.
struct ShardingRules {
  bool weights = false, states = false;
  int64_t min_weight_elements = kMinElementsForSharding, min_state_elements = kMinElementsForSharding;
};
/// The number of copies of a plan's program in one process.
struct Replication {
  int64_t replicas = 1;
  int64_t processes = 1;                         // processes with these replicas, which add up their gradient sums
  std::vector<int32_t> input_part = {};          // by replica; as in Executable
  std::vector<ParameterGroups> parameters = {};  // all replicas share the parameters that are not named here
  ShardingRules sharding = {};
  /// Devices of a replica in each process; a replica with more devices is spread over several processes. 0: a process
  /// has all devices.
  int64_t devices_per_process = 0;
};

/// The value of the graph that a slot holds after the instruction that computes it.
struct Origin {
  int32_t slot = -1;
  ir::ValueId value = ir::kNone;
};
/// By segment of replica 0, then by instruction.
using Origins = std::vector<std::vector<std::vector<Origin>>>;

/// origins: filled in unless it is null.
Executable build(const ir::Graph& graph, const plan::Plan& plan, const Replication& replication = {},
                 Origins* origins = nullptr);

}  // namespace abele::exe

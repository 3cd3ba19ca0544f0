// The costs of a graph's stages, estimated from shapes or added up from times that capture measured.
#pragma once

#include <vector>

#include "ir/graph.h"
#include "plan/plan.h"
#include "plan/predict.h"

namespace abele::plan {

/// Times from shapes alone (plan/operator_cost.h). Equal graphs get equal costs, so schedules ordered by these costs
/// are deterministic.
std::vector<schedule::StageCost> estimateCosts(const ir::Graph& graph);

/// Delays of the machine that the estimates describe: the time until a waiting device continues, and the time between
/// two actions.
constexpr int64_t kEstimatedHopNs = 20'000, kEstimatedActionNs = 1'000;

/// Times that capture measured (Node::time_ns). Nodes that it never ran (updates, sums) are estimated. Measured times
/// differ from run to run, so only predictions use them, not programs.
std::vector<schedule::StageCost> measuredCosts(const ir::Graph& graph);

/// Costs for simulate(), with the memory of a plan of the graph.
schedule::CostModel costModelOf(const ir::Graph& graph, const Plan& plan, std::vector<schedule::StageCost> costs);
std::vector<schedule::StageMemory> memoryOf(const ir::Graph& graph, const Plan& plan);

/// The values that are transferred between stages on different devices in every micro-batch, in the order of the nodes
/// that make them. Each value is sent once to each device, to the first task there that reads it. Leaves out values of
/// transfer nodes, which the plan has placed.
std::vector<schedule::Handover> handoversOf(const ir::Graph& graph);
/// The bytes of the gradient sums that each stage makes.
std::vector<int64_t> gradientBytes(const ir::Graph& graph);

/// All that predict() needs to know about a graph under every schedule: the given costs, and the memory of three plans.
/// A training graph must have its weight gradients split off (passes::splitWeightGradient).
Chain chainOf(const ir::Graph& graph, const PlanOptions& options, std::vector<schedule::StageCost> costs);

}  // namespace abele::plan

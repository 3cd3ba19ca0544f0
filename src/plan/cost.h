// From a graph to the costs of its stages: estimated from shapes, or summed up from what capture measured.
#pragma once

#include <vector>

#include "ir/graph.h"
#include "plan/predict.h"

namespace abele::plan {

/// Times by shapes alone (plan/operator_cost.h). Equal graphs give equal costs, so schedules ordered by them are
/// deterministic.
std::vector<StageCost> estimateCosts(const ir::Graph& graph);

/// Delays of the machine that the estimates describe: until a waiting device continues, and between two actions.
constexpr int64_t kEstimatedHopNs = 20'000, kEstimatedActionNs = 1'000;

/// Times that capture measured (Node::time_ns); nodes that it never ran (updates, sums) are estimated. Differs from run
/// to run: for predictions, not for programs.
std::vector<StageCost> measuredCosts(const ir::Graph& graph);

/// Costs, and the memory of a plan of the graph, for simulate().
CostModel costModelOf(const ir::Graph& graph, const Plan& plan, std::vector<StageCost> costs);
std::vector<StageMemory> memoryOf(const ir::Graph& graph, const Plan& plan);

/// What stages on different devices hand over in every micro-batch: each value once to each device, to the first task
/// there that reads it. Those that a transfer brings are placed by the plan. By the makers' order.
std::vector<Handover> handoversOf(const ir::Graph& graph);
/// By stage, the bytes of the gradient sums that it makes.
std::vector<int64_t> gradientBytes(const ir::Graph& graph);

/// What predict() needs to know about a graph under every schedule: the given costs, and the memory of three plans. A
/// training graph must have its weight gradients split off (passes::splitWeightGradient).
Chain chainOf(const ir::Graph& graph, const PlanOptions& options, std::vector<StageCost> costs);

}  // namespace abele::plan

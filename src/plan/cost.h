// From a graph to the costs of its stages: estimated from shapes, or summed up from what capture measured.
#pragma once

#include <vector>

#include "ir/graph.h"
#include "plan/predict.h"

namespace abele::plan {

/// Times by shapes alone (plan/operator_cost.h). Equal graphs give equal costs, so schedules ordered by them are
/// deterministic.
std::vector<StageCost> estimateCosts(const ir::Graph& graph);

/// What an action takes that works on several micro-batches side by side.
struct LaneCosts {
  std::vector<StageCost> each;  // of a micro-batch alone, by stage
  /// The part of it that an action takes once, however many lie side by side: calls that are one for all (what they
  /// take beside their work, and reading what all share), and what is the same for all. Of an update: all of it.
  std::vector<StageCost> once;
  /// lanes * each - (lanes - 1) * once.
  std::vector<StageCost> of(int64_t lanes) const;
};
/// costs: of a micro-batch; empty: estimateCosts(graph). Of given ones, the estimated share is taken once. Its one
/// parameter is what a call takes beside its work (plan/operator_cost.cc); which calls join: sharingOfLanes().
LaneCosts laneCosts(const ir::Graph& graph, std::vector<StageCost> costs = {});

/// What the actions of a plan take, by stage: options.costs of options.lanes micro-batches, or estimates of these.
std::vector<StageCost> actionCosts(const ir::Graph& graph, const PlanOptions& options);

/// The step that simulate() predicts for the graph under these options and lanes, each device with a core of its own:
/// for choices among programs, which must be the same on every machine. In training, one update. Times are
/// options.costs, else estimates with the delays below. lane_costs: of the graph and options.costs.
int64_t predictStepNs(const ir::Graph& graph, const PlanOptions& options, const LaneCosts& lane_costs);

/// The same machine's delays: until a device that waits for another goes on, and between two actions.
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

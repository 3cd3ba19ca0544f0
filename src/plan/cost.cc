#include "plan/cost.h"

#include <algorithm>

#include "base/error.h"
#include "plan/operator_cost.h"

namespace abele::plan {
namespace {

using ir::Direction;

template <class Fn>
std::vector<StageCost> sumUp(const ir::Graph& graph, Fn&& time_of) {
  std::vector<StageCost> costs(graph.stages.size(), StageCost{0, 0, 0, 0});
  for (const ir::Node& node : graph.nodes) {
    if (node.is_view || node.stage < 0) continue;
    StageCost& cost = costs[static_cast<size_t>(node.stage)];
    switch (node.direction) {
      case Direction::kForward: cost.forward_ns += time_of(node); break;
      case Direction::kBackward: cost.backward_ns += time_of(node); break;
      case Direction::kWeightGrad: cost.weight_grad_ns += time_of(node); break;
      case Direction::kUpdate: cost.update_ns += time_of(node); break;
    }
  }
  return costs;
}

}  // namespace

int64_t estimateNodeNs(const ir::Graph& graph, const ir::Node& node) { return estimateNode(graph, node); }

std::vector<StageCost> estimateCosts(const ir::Graph& graph) {
  return sumUp(graph, [&](const ir::Node& node) { return estimateNs(graph, node); });
}

std::vector<StageCost> measuredCosts(const ir::Graph& graph) {
  return sumUp(graph, [&](const ir::Node& node) { return node.time_ns > 0 ? node.time_ns : estimateNs(graph, node); });
}

CostModel costModelOf(const Plan& plan, std::vector<StageCost> costs) {
  CostModel model;
  model.stages = std::move(costs);
  model.hop_ns = plan.options.hop_ns;
  model.memory = memoryOf(plan);
  return model;
}

std::vector<StageMemory> memoryOf(const Plan& plan) {
  std::vector<StageMemory> memory(plan.worker_of.size());
  for (size_t s = 0; s < plan.worker_of.size(); ++s) {
    const size_t worker = static_cast<size_t>(plan.worker_of[s]);
    // A plan knows weights by worker: the first of its stages carries them.
    const bool is_first = std::find(plan.worker_of.begin(), plan.worker_of.end(), plan.worker_of[s]) ==
                          plan.worker_of.begin() + static_cast<std::ptrdiff_t>(s);
    memory[s] = {is_first ? plan.persistent_bytes[worker] : 0, plan.stash_bytes[s], plan.transient_bytes[worker],
                 plan.users[s]};
  }
  return memory;
}

Chain chainOf(const ir::Graph& graph, const PlanOptions& options, std::vector<StageCost> costs) {
  // Training graphs come with or without weight gradients of their own: those of the backward are told from the rest by
  // the pass that splits them, and merging is only a matter of names.
  ir::Graph whole = graph;
  for (ir::Node& node : whole.nodes)
    if (node.direction == Direction::kWeightGrad) node.direction = Direction::kBackward;
  PlanOptions asked = options;
  asked.costs.clear();
  const auto planned = [&](const ir::Graph& of, ScheduleKind kind) {
    asked.schedule = kind;
    return makePlan(of, asked);
  };
  const Plan plan = planned(whole, graph.training ? ScheduleKind::k1F1B : ScheduleKind::kForward);
  Chain chain;
  chain.costs = costModelOf(plan, std::move(costs));
  chain.costs.hop_ns = 0;
  for (int worker : plan.worker_of) chain.device_of.push_back(plan.device_of[static_cast<size_t>(worker)]);
  chain.sharded_memory = memoryOf(planned(whole, ScheduleKind::kSharded));
  if (graph.training) chain.split_memory = memoryOf(planned(graph, ScheduleKind::kZeroBubble));
  return chain;
}

}  // namespace abele::plan

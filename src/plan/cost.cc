#include "plan/cost.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/instructions.h"
#include "plan/divided_stages.h"
#include "plan/liveness.h"
#include "plan/operator_cost.h"

namespace abele::plan {
namespace {

using ir::Direction;

template <class Fn>
std::vector<schedule::StageCost> sumUp(const ir::Graph& graph, Fn&& time_of) {
  std::vector<schedule::StageCost> costs(graph.stages.size(), schedule::StageCost{0, 0, 0, 0});
  for (const ir::Node& node : graph.nodes) {
    // A transfer is work of a link, done while the stage computes.
    if (node.is_view || node.stage < 0 || isTransfer(node)) continue;
    schedule::StageCost& cost = costs[node.stage];
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

std::vector<schedule::StageCost> estimateCosts(const ir::Graph& graph) {
  return sumUp(graph, [&](const ir::Node& node) { return estimateNodeNs(graph, node); });
}

std::vector<schedule::StageCost> measuredCosts(const ir::Graph& graph) {
  return sumUp(graph,
               [&](const ir::Node& node) { return node.time_ns > 0 ? node.time_ns : estimateNodeNs(graph, node); });
}

schedule::CostModel costModelOf(const ir::Graph& graph, const Plan& plan, std::vector<schedule::StageCost> costs) {
  schedule::CostModel model;
  model.stages = std::move(costs);
  model.hop_ns = plan.options.hop_ns;
  model.memory = memoryOf(graph, plan);
  return model;
}

std::vector<schedule::StageMemory> memoryOf(const ir::Graph& graph, const Plan& plan) {
  PlanOptions options = plan.options;
  // That kind only orders the actions; the memory layout is 1F1B's.
  if (schedule::splitsBackward(options.schedule)) options.schedule = schedule::ScheduleKind::k1F1B;
  const PlannedStages together = planStages(graph, options, RingRule::kTogether);
  const PlannedStages apart = planStages(graph, options, RingRule::kApart);
  std::vector<schedule::StageMemory> memory(plan.worker_of.size());
  for (size_t s = 0; s < plan.worker_of.size(); ++s) {
    const size_t worker = static_cast<size_t>(plan.worker_of[s]);
    // A plan knows the bytes of weights by worker, so the worker's first stage carries them.
    const bool is_first =
        std::ranges::find(plan.worker_of, plan.worker_of[s]) == plan.worker_of.begin() + static_cast<std::ptrdiff_t>(s);
    memory[s] = {is_first ? plan.persistent_bytes[worker] : 0, together.plan.stash_bytes[s],
                 together.transient_bytes[s], together.plan.users[s]};
  }
  const DividedStages divided(graph, plan.worker_of);
  for (size_t r = 0; r < apart.plan.rings.size(); ++r) {
    const TaskRing& ring = apart.plan.rings[r];
    if (ring.is_received) {
      const TaskRing& now = plan.rings[r];  // received rings come first in every plan, so the index is the same
      memory[static_cast<size_t>(ring.task.stage)].persistent_bytes += now.frames * now.bytes;
      continue;
    }
    const auto s = static_cast<size_t>(divided.owner_of[static_cast<size_t>(ring.task.stage)]);
    if (memory[s].rings.empty()) memory[s].rings.push_back({apart.plan.stash_bytes[s], apart.plan.users[s]});
    memory[s].rings.push_back({ring.bytes, ring.users});
    memory[s].apart_transient_bytes = apart.transient_bytes[s];
  }
  return memory;
}

std::vector<schedule::Handover> handoversOf(const ir::Graph& graph) {
  const auto device_of = [&](int32_t stage) { return graph.stages[stage].device; };
  const auto order = [](const Task& t) {
    return std::pair(t.direction, t.direction == Direction::kForward ? t.stage : -t.stage);
  };
  std::vector<const ir::Node*> maker(graph.values.size(), nullptr);
  std::map<std::pair<ir::ValueId, int32_t>, Task> readers;  // by value and device: the first task that reads it
  std::vector<bool> is_received(graph.values.size(), false);
  for (const ir::Node& node : graph.nodes) {
    if (node.is_view || node.stage < 0) continue;
    ir::forEachOperand(node, [&](ir::ValueId v) {
      const ir::ValueId base = graph.baseOf(v);
      const ir::Node* made = maker[base];
      if (made == nullptr || node.direction == Direction::kUpdate || !precedes(taskOf(*made), taskOf(node))) return;
      const int32_t device = device_of(node.stage);
      if (device_of(made->stage) == device) return;
      if (isReceive(node)) is_received[base] = true;
      const auto [it, is_new] = readers.try_emplace({base, device}, taskOf(node));
      if (!is_new && order(taskOf(node)) < order(it->second)) it->second = taskOf(node);
    });
    ir::forEachResult(node, [&](ir::ValueId v) { maker[v] = &node; });
    for (const ir::Write& w : node.writes) maker[w.after] = &node;
  }
  std::map<std::tuple<Task, Task, bool>, int64_t> bytes;
  for (const auto& [place, reader] : readers) {
    const auto v = static_cast<size_t>(place.first);
    bytes[{taskOf(*maker[v]), reader, is_received[v]}] += graph.values[v].type.extentBytes();
  }
  std::vector<schedule::Handover> handovers;
  for (const auto& [key, size] : bytes)
    handovers.push_back({std::get<0>(key), std::get<1>(key), size, std::get<2>(key)});
  return handovers;
}

std::vector<int64_t> gradientBytes(const ir::Graph& graph) {
  std::vector<int64_t> bytes(graph.stages.size(), 0);
  std::vector<bool> is_sum(graph.values.size(), false);
  for (const ir::Input& input : graph.inputs) is_sum[input.value] = input.kind == ir::InputKind::kAccumulator;
  for (const ir::Node& node : graph.nodes) {
    if (node.is_view || node.stage < 0) continue;
    ir::forEachOperand(node, [&](ir::ValueId v) {
      const auto base = static_cast<size_t>(graph.baseOf(v));
      if (!is_sum[base]) return;
      is_sum[base] = false;
      bytes[node.stage] += graph.values[base].type.extentBytes();
    });
  }
  return bytes;
}

Chain chainOf(const ir::Graph& graph, const PlanOptions& options, std::vector<schedule::StageCost> costs) {
  // A training graph may have its weight gradients split off. Only the pass can split them, but merging them again just
  // changes their direction.
  ir::Graph whole = graph;
  for (ir::Node& node : whole.nodes)
    if (node.direction == Direction::kWeightGrad) node.direction = Direction::kBackward;
  PlanOptions asked = options;
  asked.costs.clear();
  const auto planned = [&](const ir::Graph& of, schedule::ScheduleKind kind) {
    asked.schedule = kind;
    return makePlan(of, asked);
  };
  const Plan plan = planned(whole, graph.training ? schedule::ScheduleKind::k1F1B : schedule::ScheduleKind::kForward);
  Chain chain;
  chain.costs = costModelOf(whole, plan, std::move(costs));
  chain.costs.hop_ns = 0;
  for (int worker : plan.worker_of) chain.device_of.push_back(plan.device_of[worker]);
  chain.sharded_memory = memoryOf(whole, planned(whole, schedule::ScheduleKind::kSharded));
  if (graph.training) chain.split_memory = memoryOf(graph, planned(graph, schedule::ScheduleKind::kZeroBubble));
  chain.handovers = handoversOf(graph);
  if (graph.training) chain.gradient_bytes = gradientBytes(graph);
  return chain;
}

}  // namespace abele::plan

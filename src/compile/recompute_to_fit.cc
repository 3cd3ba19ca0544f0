// Chooses the values that backward recomputes, so that a program fits its devices in little extra time.
#include <algorithm>
#include <functional>
#include <map>

#include "base/log.h"
#include "compile/lowering.h"
#include "ir/rewrite.h"
#include "passes/recompute.h"
#include "plan/liveness.h"
#include "plan/operator_cost.h"
#include "plan/packing.h"

namespace abele::compile {
namespace {

using ir::Direction;
using ir::ValueId;

/// Up to this number of candidates, all sets are tried if the greedy order finds nothing that fits.
constexpr size_t kFewCandidates = 12;
/// Limit of the plans that are made to remove values from the choice.
constexpr int kMostRemovals = 24;

/// A value of the stash that backward reads and can recompute.
struct RecomputeCandidate {
  ValueId value = ir::kNone;
  int device = 0;
  int64_t bytes = 0;    // bytes in all frames
  int64_t time_ns = 0;  // time that it adds to the candidates before it in the greedy order
};

using Candidates = std::vector<RecomputeCandidate>;

class Chooser {
 public:
  Chooser(const ir::Graph& lowered, const Captured& captured, const ProgramOptions& options)
      : graph_(lowered), captured_(captured), options_(options), position_(ir::positionsById(lowered)) {
    plan_options_ = planOptions(options);
    plan_ = planOf(graph_);
    rules_ = {.enabled = true, .last_stage = true, .kept = captured.kept};
  }

  Recomputed run() {
    const std::vector<int64_t> peaks = plan::peakDeviceBytes(plan_);
    if (plan::spareBytes(plan_.device_of, peaks, options_.device_memory) >= 0) return {};
    repeatable_ = passes::repeatableValues(graph_, rules_);
    findLocals();
    findCandidates();
    Recomputed result{.needed = true, .of = static_cast<int64_t>(all_.size())};
    Candidates chosen;
    for (size_t w = 0; w < plan_.device_of.size(); ++w) {
      const int device = plan_.device_of[w];
      if (options_.device_memory.spare(device, peaks[w]) >= 0) continue;
      const Candidates here = chooseFor(w, options_.device_memory.of(device));
      chosen.insert(chosen.end(), here.begin(), here.end());
      log::info("recompute to fit: device ", device, ": ", here.size(), " values");
    }
    result.values = static_cast<int64_t>(chosen.size());
    result.extra_ns = timeOf(chosen);
    result.kept = keptWithout(chosen);
    return result;
  }

 private:
  // --- candidates ----------------------------------------------------------------------------------------------------
  const ir::Node* makerOf(ValueId base) const {
    const ir::NodeId def = graph_.values[base].def;
    return def == ir::kNone ? nullptr : &graph_.nodes[position_[def]];
  }

  // Finds values that die with their task, even if they have a place in a frame.
  void findLocals() {
    in_one_task_.assign(graph_.values.size(), false);
    for (const plan::Buffer& buffer : plan::analyseLiveness(graph_, plan_options_, plan_.schedule).buffers) {
      const bool is_local = std::ranges::all_of(buffer.touches, [&](const plan::Touch& t) {
        return buffer.input < 0 && !buffer.is_received && t.task == buffer.touches.front().task;
      });
      for (ValueId member : buffer.members) in_one_task_[member] = is_local && !buffer.touches.empty();
    }
  }

  bool isKept(ValueId base) const {
    const plan::Home home = plan_.placement[base].home;
    return !in_one_task_[base] && (home == plan::Home::kStash || home == plan::Home::kRing);
  }

  int64_t framesOf(const plan::Placement& home) const {
    return home.ring >= 0 ? plan_.rings[home.ring].frames : plan_.frames[home.stage];
  }

  void findCandidates() {
    std::vector<bool> is_candidate(graph_.values.size(), false);
    for (const ir::Node& node : graph_.nodes) {
      if (node.direction != Direction::kBackward && node.direction != Direction::kWeightGrad) continue;
      ir::forEachOperand(node, [&](ValueId v) {
        const ValueId base = graph_.baseOf(v);
        const plan::Placement& home = plan_.placement[base];
        if (is_candidate[base] || !repeatable_[base] || !isKept(base) || home.off_chip >= 0) return;
        is_candidate[base] = true;
        all_.push_back({.value = base,
                        .device = plan_.device_of[plan_.worker_of[home.stage]],
                        .bytes = plan::alignUp(graph_.values[base].type.extentBytes()) * framesOf(home)});
      });
    }
    std::ranges::sort(all_, {}, &RecomputeCandidate::value);
    is_candidate_ = std::move(is_candidate);
  }

  // --- times ---------------------------------------------------------------------------------------------------------
  /// The nodes to run again for a value, and the values on the way that must be kept for them.
  struct Effort {
    std::vector<const ir::Node*> nodes;
    std::vector<ValueId> kept;
    int64_t time_ns = 0, kept_bytes = 0;
  };

  // again: candidates that are recomputed. done: nodes that run again anyway.
  Effort effortFor(ValueId value, const std::vector<bool>& again, const std::vector<bool>& done,
                   const std::vector<bool>& held) const {
    Effort effort;
    std::vector<ValueId> open{value};
    std::vector<bool> seen(graph_.values.size(), false);
    while (!open.empty()) {
      const ValueId base = open.back();
      open.pop_back();
      if (seen[base]) continue;
      seen[base] = true;
      const ir::Node* node = makerOf(base);
      if (!node) continue;
      const bool is_made = repeatable_[base] && (base == value || !is_candidate_[base] || again[base]);
      if (!is_made) {
        if (in_one_task_[base] && !held[base]) {
          effort.kept.push_back(base);
          effort.kept_bytes += plan::alignUp(graph_.values[base].type.extentBytes()) * plan_.frames[node->stage];
        }
        continue;
      }
      const size_t at = static_cast<size_t>(node - graph_.nodes.data());
      if (done[at]) continue;
      if (std::ranges::find(effort.nodes, node) == effort.nodes.end()) {
        effort.nodes.push_back(node);
        effort.time_ns += plan::estimateNodeNs(graph_, *node);
      }
      ir::forEachOperand(*node, [&](ValueId v) { open.push_back(graph_.baseOf(v)); });
    }
    return effort;
  }

  // Orders candidates by bytes per time, the best first. Nodes that run again for one value cost nothing for the next.
  Candidates greedyOrder(int device) const {
    Candidates left, order;
    for (const RecomputeCandidate& c : all_)
      if (c.device == device) left.push_back(c);
    std::vector<bool> again(graph_.values.size(), false), done(graph_.nodes.size(), false), held(again);
    // The worth of a candidate only falls while others are chosen, so old worths serve for a few rounds.
    std::vector<double> worth(left.size(), -1);
    const auto look = [&](size_t i) {
      const Effort effort = effortFor(left[i].value, again, done, held);
      left[i].time_ns = effort.time_ns;
      worth[i] = static_cast<double>(left[i].bytes - effort.kept_bytes) / static_cast<double>(effort.time_ns + 1);
    };
    while (!left.empty()) {
      if (left.size() <= kLookAtAll || order.size() % kRounds == 0)
        for (size_t i = 0; i < left.size(); ++i) look(i);
      size_t best = static_cast<size_t>(std::ranges::max_element(worth) - worth.begin());
      look(best);
      const Effort effort = effortFor(left[best].value, again, done, held);
      for (const ir::Node* node : effort.nodes) done[node - graph_.nodes.data()] = true;
      for (ValueId v : effort.kept) held[v] = true;
      again[left[best].value] = true;
      order.push_back(left[best]);
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(best));
      worth.erase(worth.begin() + static_cast<std::ptrdiff_t>(best));
    }
    return order;
  }
  static constexpr size_t kLookAtAll = 256, kRounds = 16;

  int64_t timeOf(const Candidates& chosen) const {
    int64_t time_ns = 0;
    std::vector<bool> again(graph_.values.size(), false), done(graph_.nodes.size(), false), held(again);
    for (const RecomputeCandidate& c : chosen) again[c.value] = true;
    for (const RecomputeCandidate& c : chosen) {
      const Effort effort = effortFor(c.value, again, done, held);
      time_ns += effort.time_ns;
      for (const ir::Node* node : effort.nodes) done[node - graph_.nodes.data()] = true;
    }
    return time_ns;
  }

  // --- plans ---------------------------------------------------------------------------------------------------------
  std::vector<ValueId> keptWithout(const Candidates& chosen) const {
    std::vector<ValueId> kept = captured_.kept;
    for (const RecomputeCandidate& c : all_)
      if (std::ranges::none_of(chosen, [&](const RecomputeCandidate& other) { return other.value == c.value; }))
        kept.push_back(c.value);
    return kept;
  }

  // The plan of a graph whose backward is not split yet.
  plan::Plan planOf(ir::Graph graph) const {
    passes::PassContext context;
    if (schedule::splitsBackward(plan_options_.schedule)) passes::splitWeightGradient(graph, context);
    passes::insertTransfers(graph, context);
    return plan::makePlan(graph, plan_options_);
  }

  int64_t peakWith(const Candidates& chosen, size_t worker) const {
    ir::Graph graph = graph_;
    passes::PassContext context;
    context.recompute = rules_;
    context.recompute.kept = keptWithout(chosen);
    passes::recompute(graph, context);
    return plan::peakDeviceBytes(planOf(std::move(graph)))[worker];
  }

  Candidates chooseFor(size_t worker, int64_t limit) const {
    const Candidates order = greedyOrder(plan_.device_of[worker]);
    const auto first = [&](size_t count) {
      return Candidates(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count));
    };
    // Finds the shortest prefix of the order that fits, by bisection. Without one, takes any choice that fits.
    size_t fits = 0, low = 0, high = order.size();
    std::map<size_t, int64_t> peaks;
    const auto peak = [&](size_t count) {
      auto [it, is_new] = peaks.emplace(count, 0);
      if (is_new) it->second = peakWith(first(count), worker);
      return it->second;
    };
    const size_t step = std::max<size_t>(1, order.size() / 16);
    for (size_t count = step; fits == 0 && !order.empty(); count += step) {
      count = std::min(count, order.size());
      if (peak(count) <= limit)
        fits = count;
      else
        low = count;
      if (count == order.size()) break;
    }
    if (fits > 0) {
      for (high = fits; high - low > 1;) {
        const size_t middle = low + (high - low) / 2;
        (peak(middle) <= limit ? high : low) = middle;
      }
      return withoutTheUnneeded(first(high), worker, limit);
    }
    if (order.size() <= kFewCandidates)
      if (Candidates any = anyThatFits(order, worker, limit); !any.empty()) return any;
    const auto least =
        std::ranges::min_element(peaks, [](const auto& a, const auto& b) { return a.second < b.second; });
    return least == peaks.end() ? order : first(least->first);
  }

  // Removes values that need not be recomputed after all, the longest time first.
  Candidates withoutTheUnneeded(Candidates chosen, size_t worker, int64_t limit) const {
    Candidates by_time = chosen;
    std::ranges::stable_sort(by_time, std::greater(), &RecomputeCandidate::time_ns);
    int plans = 0;
    for (const RecomputeCandidate& c : by_time) {
      if (++plans > kMostRemovals) break;
      Candidates fewer = chosen;
      std::erase_if(fewer, [&](const RecomputeCandidate& other) { return other.value == c.value; });
      if (timeOf(fewer) < timeOf(chosen) && peakWith(fewer, worker) <= limit) chosen = std::move(fewer);
    }
    return chosen;
  }

  // The set that fits in the least time, among all sets; empty if none fits.
  Candidates anyThatFits(const Candidates& order, size_t worker, int64_t limit) const {
    Candidates best;
    for (uint32_t set = 1; set < (1U << order.size()); ++set) {
      Candidates chosen;
      for (size_t i = 0; i < order.size(); ++i)
        if ((set >> i) & 1U) chosen.push_back(order[i]);
      if ((best.empty() || timeOf(chosen) < timeOf(best)) && peakWith(chosen, worker) <= limit) best = chosen;
    }
    return best;
  }

  const ir::Graph& graph_;
  const Captured& captured_;
  const ProgramOptions& options_;
  std::vector<int32_t> position_;  // position of each node, by id
  plan::PlanOptions plan_options_;
  plan::Plan plan_;
  passes::RecomputeRules rules_;
  std::vector<bool> repeatable_, is_candidate_, in_one_task_;  // by value
  Candidates all_;
};

}  // namespace

Recomputed recomputeToFit(const ir::Graph& lowered, const Captured& captured, const ProgramOptions& options) {
  return Chooser(lowered, captured, options).run();
}

}  // namespace abele::compile

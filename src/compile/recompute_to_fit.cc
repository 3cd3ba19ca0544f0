// Chooses the values that backward recomputes, so that a program fits its devices in little extra time.
#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "base/joined.h"
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
  size_t group = 0;     // devices that hold it
  int64_t bytes = 0;    // bytes in all frames
  int64_t time_ns = 0;  // time that it adds to the candidates before it in the greedy order
};

using Candidates = std::vector<RecomputeCandidate>;

class Chooser {
 public:
  Chooser(const ir::Graph& lowered, const Captured& captured, const ProgramOptions& options, const Divide& divide)
      : graph_(lowered),
        captured_(captured),
        options_(options),
        divide_(divide),
        position_(ir::positionsById(lowered)) {
    plan_options_ = planOptions(options);
    plan_ = planOf(graph_);
    rules_ = {.enabled = true, .last_stage = true, .kept = captured.kept};
    findGroups();
  }

  Recomputed run() {
    const plan::Plan whole = divide_ ? plan::makePlan(divide_({}), plan_options_) : plan_;
    std::vector<size_t> full;
    for (size_t g = 0; g < groups_.size(); ++g)
      if (spareOf(whole, groups_[g]) < 0) full.push_back(g);
    if (full.empty()) return {};
    repeatable_ = passes::repeatableValues(graph_, rules_);
    findLocals();
    findCandidates();
    Recomputed result{.needed = true, .of = static_cast<int64_t>(all_.size())};
    Candidates chosen;
    for (const size_t g : full) {
      const Candidates here = chooseFor(g);
      chosen.insert(chosen.end(), here.begin(), here.end());
      log::info("recompute to fit: device ", joined(groups_[g]), ": ", here.size(), " values");
    }
    result.values = static_cast<int64_t>(chosen.size());
    result.extra_ns = timeOf(chosen);
    result.kept = keptWithout(chosen);
    return result;
  }

 private:
  // Devices that share the work of stages choose together. A device without others is a group of its own.
  void findGroups() {
    for (const int device : plan_.device_of) groups_.push_back({device});
    for (const ir::Stage& stage : graph_.stages) {
      std::set<int> devices(stage.group.begin(), stage.group.end());
      devices.insert(stage.device);
      const auto meets = [&](const std::set<int>& group) {
        return std::ranges::any_of(group, [&](int device) { return devices.contains(device); });
      };
      const auto first = std::ranges::find_if(groups_, meets);
      std::set<int> all = devices;
      for (const std::set<int>& group : groups_)
        if (meets(group)) all.insert(group.begin(), group.end());
      *first = std::move(all);
      groups_.erase(std::remove_if(first + 1, groups_.end(), meets), groups_.end());
    }
  }

  // Bytes that the fullest device of a group has left.
  int64_t spareOf(const plan::Plan& plan, const std::set<int>& group) const {
    const std::vector<int64_t> peaks = plan::peakDeviceBytes(plan);
    int64_t spare = std::numeric_limits<int64_t>::max();
    for (size_t w = 0; w < peaks.size(); ++w)
      if (group.contains(plan.device_of[w]))
        spare = std::min(spare, options_.device_memory.spare(plan.device_of[w], peaks[w]));
    return spare;
  }

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
        const int device = plan_.device_of[plan_.worker_of[home.stage]];
        const auto holds = [&](const std::set<int>& group) { return group.contains(device); };
        all_.push_back({.value = base,
                        .group = static_cast<size_t>(std::ranges::find_if(groups_, holds) - groups_.begin()),
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
  Candidates greedyOrder(size_t group) const {
    Candidates left, order;
    for (const RecomputeCandidate& c : all_)
      if (c.group == group) left.push_back(c);
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

  int64_t spareWith(const Candidates& chosen, size_t group) const {
    passes::PassContext context;
    context.recompute = rules_;
    context.recompute.kept = keptWithout(chosen);
    if (divide_) return spareOf(plan::makePlan(divide_(context.recompute), plan_options_), groups_[group]);
    ir::Graph graph = graph_;
    passes::recompute(graph, context);
    return spareOf(planOf(std::move(graph)), groups_[group]);
  }

  Candidates chooseFor(size_t group) const {
    const Candidates order = greedyOrder(group);
    const auto first = [&](size_t count) {
      return Candidates(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count));
    };
    // Finds the shortest prefix of the order that fits, by bisection. Without one, takes any choice that fits.
    size_t fits = 0, low = 0, high = order.size();
    std::map<size_t, int64_t> spares;
    const auto spare = [&](size_t count) {
      auto [it, is_new] = spares.emplace(count, 0);
      if (is_new) it->second = spareWith(first(count), group);
      return it->second;
    };
    const size_t step = std::max<size_t>(1, order.size() / 16);
    for (size_t count = step; fits == 0 && !order.empty(); count += step) {
      count = std::min(count, order.size());
      if (spare(count) >= 0)
        fits = count;
      else
        low = count;
      if (count == order.size()) break;
    }
    if (fits > 0) {
      for (high = fits; high - low > 1;) {
        const size_t middle = low + (high - low) / 2;
        (spare(middle) >= 0 ? high : low) = middle;
      }
      return withoutTheUnneeded(first(high), group);
    }
    if (order.size() <= kFewCandidates)
      if (Candidates any = anyThatFits(order, group); !any.empty()) return any;
    const auto most =
        std::ranges::max_element(spares, [](const auto& a, const auto& b) { return a.second < b.second; });
    return most == spares.end() ? order : first(most->first);
  }

  // Removes values that need not be recomputed after all, the longest time first.
  Candidates withoutTheUnneeded(Candidates chosen, size_t group) const {
    Candidates by_time = chosen;
    std::ranges::stable_sort(by_time, std::greater(), &RecomputeCandidate::time_ns);
    int plans = 0;
    for (const RecomputeCandidate& c : by_time) {
      if (++plans > kMostRemovals) break;
      Candidates fewer = chosen;
      std::erase_if(fewer, [&](const RecomputeCandidate& other) { return other.value == c.value; });
      if (timeOf(fewer) < timeOf(chosen) && spareWith(fewer, group) >= 0) chosen = std::move(fewer);
    }
    return chosen;
  }

  // The set that fits in the least time, among all sets; empty if none fits.
  Candidates anyThatFits(const Candidates& order, size_t group) const {
    Candidates best;
    for (uint32_t set = 1; set < (1U << order.size()); ++set) {
      Candidates chosen;
      for (size_t i = 0; i < order.size(); ++i)
        if ((set >> i) & 1U) chosen.push_back(order[i]);
      if ((best.empty() || timeOf(chosen) < timeOf(best)) && spareWith(chosen, group) >= 0) best = chosen;
    }
    return best;
  }

  const ir::Graph& graph_;
  const Captured& captured_;
  const ProgramOptions& options_;
  const Divide& divide_;
  std::vector<std::set<int>> groups_;  // devices
  std::vector<int32_t> position_;      // position of each node, by id
  plan::PlanOptions plan_options_;
  plan::Plan plan_;
  passes::RecomputeRules rules_;
  std::vector<bool> repeatable_, is_candidate_, in_one_task_;  // by value
  Candidates all_;
};

}  // namespace

Recomputed recomputeToFit(const ir::Graph& lowered, const Captured& captured, const ProgramOptions& options,
                          const Divide& divide) {
  return Chooser(lowered, captured, options, divide).run();
}

}  // namespace abele::compile

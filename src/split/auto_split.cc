#include "split/auto_split.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "base/error.h"

namespace abele::split {
namespace {

// Limits that keep the choice within a fraction of a second: the number of simulated actions, and the number of cuts
// that are tried for schedules whose order has to be searched.
constexpr int64_t kMostActionsSimulated = 1'000'000;
constexpr size_t kMostTried = 4000;
constexpr size_t kSearchedTried = 6;
constexpr int64_t kMostMicroBatches = 64;  // more micro-batches lead to the same cuts

plan::PredictOptions predictOptions(const SplitChain& chain, const SplitOptions& options) {
  return {.schedule = options.schedule,
          .training = chain.training,
          .device_iterations = options.device_iterations,
          .accumulation = options.accumulation};
}

int64_t heldBy(const SplitOptions& options, size_t s, size_t p) {
  return schedule::scheduleRow(options.schedule)
      .held(options.accumulation, static_cast<int64_t>(p), static_cast<int64_t>(s));
}

// For comparison: smaller is better.
using SplitCost = std::tuple<int64_t, int64_t, int64_t>;  // bytes above the limit, step, bytes handed over
SplitCost splitCostOf(const Split& split) {
  return {split.bytes_over, split.prediction.run.step_ns, split.crossing_bytes};
}

// Above the limit, over all devices.
int64_t bytesOver(const schedule::Simulation& run, const SplitOptions& options) {
  int64_t bytes = 0;
  for (const schedule::WorkerTimes& w : run.workers)
    if (options.device_bytes > 0) bytes += std::max<int64_t>(0, w.peak_bytes - options.device_bytes);
  return bytes;
}

// Fills in all of a Split except the prediction.
Split stagesOf(const SplitChain& chain, const SplitOptions& options, std::vector<size_t> cuts) {
  Split split{.schedule = options.schedule, .cuts = std::move(cuts)};
  split.chain.costs.hop_ns = options.hop_ns;
  split.chain.machine = options.machine;
  split.chain.replication = options.replication;
  using ir::Direction;
  size_t begin = 0;
  for (size_t s = 0; s <= split.cuts.size(); ++s) {
    const bool is_last = s == split.cuts.size();
    const size_t end = is_last ? chain.pieces.size() : split.cuts[s];
    ABELE_CHECK(begin < end && end <= chain.pieces.size(), "stage ", s, " of pieces ", begin, " to ", end);
    schedule::StageCost cost = chain.cost(begin, end);
    schedule::StageMemory memory = chain.memory(begin, end);
    if (options.recompute && (!is_last || schedule::lastStageWaits(options.schedule))) {
      cost.backward_ns += cost.forward_ns;
      memory.stash_bytes = chain.pieces[begin].crossing_bytes;
    }
    split.chain.costs.stages.push_back(cost);
    split.chain.costs.memory.push_back(memory);
    split.chain.device_of.push_back(static_cast<int>(s) % options.devices);
    if (s > 0 && options.machine.hasLinks()) {
      const auto to = static_cast<int32_t>(s);
      const Piece& piece = chain.pieces[begin];
      split.chain.handovers.push_back({{to - 1, Direction::kForward}, {to, Direction::kForward}, piece.crossing_bytes});
      if (chain.training)
        split.chain.handovers.push_back(
            {{to, Direction::kBackward}, {to - 1, Direction::kBackward}, piece.returning_bytes});
    }
    if (s > 0) {
      split.crossing_bytes += chain.pieces[begin].crossing_bytes;
      split.node_ids.push_back(chain.pieces[begin].first);
    }
    begin = end;
  }
  return split;
}

class Search {
 public:
  Search(const SplitChain& chain, const SplitOptions& options) : chain_(chain), options_(options), quick_(options) {
    stages_ = static_cast<size_t>(options.devices);
    if (schedule::dealsRound(options.schedule) && 2 * stages_ <= chain.pieces.size()) stages_ *= 2;
    ABELE_REQUIRE(stages_ <= chain.pieces.size(), E0406,
                  {.what = cat("the program cannot be cut into ", stages_, " stages"),
                   .found = cat(chain.pieces.size(), chain.pieces.size() == 1 ? " piece" : " pieces",
                                " that can run on separate devices"),
                   .expected = cat(stages_, " or more"),
                   .remedy = cat("use at most ", chain.pieces.size(), " devices")});
    // The search simulates one group of micro-batches. A schedule whose order has to be searched is simulated as 1F1B.
    quick_.device_iterations = chain.training ? 1 : std::min(options.device_iterations, limit());
    quick_.accumulation = std::min(options.accumulation, limit());
    if (schedule::splitsBackward(options.schedule)) quick_.schedule = schedule::ScheduleKind::k1F1B;
    for (size_t s = 0; s < stages_; ++s)
      worker_of_.push_back(static_cast<int>(s % static_cast<size_t>(options.devices)));
    schedule_ = plan::makeSchedule(predictOptions(chain, quick_), worker_of_, {});
    size_t actions = 1;
    for (const auto& worker : schedule_.workers) actions += worker.size();
    budget_ = std::clamp<size_t>(static_cast<size_t>(kMostActionsSimulated) / actions, 50, kMostTried);
  }

  std::vector<Split> run(size_t alternatives) {
    if (isFewEnough())
      tryAll();
    else
      climb();
    std::vector<std::vector<size_t>> best = bestTried(std::max(alternatives + 1, kSearchedTried));
    std::vector<Split> splits;
    for (auto& cuts : best) splits.push_back(splitAt(chain_, options_, std::move(cuts)));
    std::ranges::stable_sort(splits, [](const Split& a, const Split& b) { return splitCostOf(a) < splitCostOf(b); });
    if (splits.size() > alternatives + 1) splits.resize(alternatives + 1);
    return splits;
  }

 private:
  int64_t limit() const { return std::max<int64_t>(kMostMicroBatches, 4 * options_.devices); }

  // Whether the budget covers all ways to choose the cuts.
  bool isFewEnough() const {
    const double pieces = static_cast<double>(chain_.pieces.size());
    double ways = 1;
    for (size_t i = 1; i < stages_; ++i) ways *= (pieces - static_cast<double>(i)) / static_cast<double>(i);
    return ways <= static_cast<double>(budget_);
  }

  void tryAll() {
    std::vector<size_t> cuts(stages_ - 1);
    std::iota(cuts.begin(), cuts.end(), 1);
    while (true) {
      costOfCuts(cuts);
      size_t i = cuts.size();
      while (i > 0 && cuts[i - 1] == chain_.pieces.size() - (cuts.size() - i) - 1) --i;
      if (i == 0) return;
      ++cuts[i - 1];
      for (; i < cuts.size(); ++i) cuts[i] = cuts[i - 1] + 1;
    }
  }

  // Starts from the best balances and moves to better neighbours, until no neighbour is better or the budget is spent.
  void climb() {
    const auto m = static_cast<double>(std::max<int64_t>(1, options_.accumulation));
    for (double update_share : {0.0, 1 / m, 1.0}) improve(balanced(update_share));
  }

  void improve(std::vector<size_t> cuts) {
    if (cuts.empty() && stages_ > 1) return;
    SplitCost best = costOfCuts(cuts);
    for (bool improved = true; improved && tried_.size() < budget_;) {
      improved = false;
      for (std::vector<size_t>& other : neighbours(cuts)) {
        if (tried_.size() >= budget_) return;
        const SplitCost value = costOfCuts(other);
        if (value >= best) continue;
        best = value;
        cuts = std::move(other);
        improved = true;
        break;
      }
    }
  }

  // One cut, or several adjacent cuts, moved by the same distance. Large moves come first, because they lead to the
  // best cuts soonest.
  std::vector<std::vector<size_t>> neighbours(const std::vector<size_t>& cuts) const {
    std::vector<std::vector<size_t>> all;
    for (size_t distance : {size_t{8}, size_t{4}, size_t{2}, size_t{1}})
      for (size_t begin = 0; begin < cuts.size(); ++begin)
        for (size_t end = begin + 1; end <= std::min(cuts.size(), begin + 3); ++end)
          for (bool later : {false, true}) {
            std::vector<size_t> moved = cuts;
            for (size_t i = begin; i < end; ++i) moved[i] = later ? cuts[i] + distance : cuts[i] - distance;
            const bool fits = later ? moved[end - 1] < (end < cuts.size() ? cuts[end] : chain_.pieces.size())
                                    : cuts[begin] > distance + (begin > 0 ? cuts[begin - 1] : 0);
            if (fits) all.push_back(std::move(moved));
          }
    return all;
  }

  // The cuts with the fastest slowest stage, then with the fewest bytes to hand over. It fills best over (stages, end),
  // one stage after the other. A stage that does not fit into a device costs as much as it has too many bytes.
  std::vector<size_t> balanced(double update_share) const {
    const size_t n = chain_.pieces.size();
    std::vector<double> before(n + 1, 0);
    for (size_t i = 0; i < n; ++i) {
      const Piece& piece = chain_.pieces[i];
      before[i + 1] = before[i] + static_cast<double>(piece.forward_ns) + static_cast<double>(piece.backward_ns) +
                      update_share * static_cast<double>(piece.update_ns);
    }
    using Value = std::pair<double, int64_t>;  // slowest stage, bytes handed over
    constexpr double kNever = std::numeric_limits<double>::infinity();
    std::vector<Value> best(n + 1, {kNever, 0});
    best[0] = {0, 0};
    std::vector<std::vector<uint32_t>> from(stages_, std::vector<uint32_t>(n + 1, 0));
    for (size_t s = 0; s < stages_; ++s) {
      std::vector<Value> next(n + 1, {kNever, 0});
      for (size_t end = s + 1; end + (stages_ - s - 1) <= n; ++end)
        for (size_t begin = end; begin-- > s;) {
          const double time = before[end] - before[begin] + 1e6 * static_cast<double>(overLimit(s, begin, end));
          if (time > next[end].first) break;  // earlier beginnings are slower still
          const Value value{std::max({best[begin].first, time, linkTime(s, begin)}),
                            best[begin].second + (begin > 0 ? chain_.pieces[begin].crossing_bytes : 0)};
          if (value >= next[end]) continue;
          next[end] = value;
          from[s][end] = static_cast<uint32_t>(begin);
        }
      best = std::move(next);
    }
    std::vector<size_t> cuts(stages_ - 1);
    for (size_t s = stages_, end = n; s-- > 1;) cuts[s - 1] = end = from[s][end];
    return cuts;
  }

  // A link is busy for every micro-batch, as a stage is, so it can be the slowest part.
  double linkTime(size_t s, size_t cut) const {
    if (s == 0 || !options_.machine.hasLinks()) return 0;
    const int link = options_.machine.linkBetween(worker_of_[s - 1], worker_of_[s]);
    if (link < 0) return 0;
    const Piece& piece = chain_.pieces[cut];
    return static_cast<double>(
        schedule::messageNs(options_.machine.links[link], std::max(piece.crossing_bytes, piece.returning_bytes)));
  }

  int64_t overLimit(size_t s, size_t begin, size_t end) const {
    if (options_.device_bytes <= 0) return 0;
    const schedule::StageMemory memory = chain_.memory(begin, end);
    const int64_t needed =
        memory.persistent_bytes + memory.stash_bytes * heldBy(options_, s, stages_) + memory.transient_bytes;
    return std::max<int64_t>(0, needed - options_.device_bytes);
  }

  const SplitCost& costOfCuts(const std::vector<size_t>& cuts) {
    auto [it, is_new] = tried_.try_emplace(cuts);
    if (!is_new) return it->second;
    const Split split = stagesOf(chain_, options_, cuts);
    schedule::CostModel costs = plan::pricedCosts(split.chain);
    if (!schedule::splitsBackward(quick_.schedule)) costs.stages = plan::wholeBackward(std::move(costs.stages));
    const schedule::Simulation run =
        schedule::simulate(schedule_, static_cast<int>(stages_), quick_.accumulation, costs);
    return it->second = {bytesOver(run, options_), run.step_ns, split.crossing_bytes};
  }

  std::vector<std::vector<size_t>> bestTried(size_t count) const {
    std::vector<const std::pair<const std::vector<size_t>, SplitCost>*> all;
    for (const auto& entry : tried_) all.push_back(&entry);
    std::ranges::stable_sort(all, [](const auto* a, const auto* b) { return a->second < b->second; });
    std::vector<std::vector<size_t>> best;
    for (size_t i = 0; i < std::min(count, all.size()); ++i) best.push_back(all[i]->first);
    return best;
  }

  const SplitChain& chain_;
  const SplitOptions& options_;
  SplitOptions quick_;  // options of the search
  size_t stages_ = 0;
  std::vector<int> worker_of_;
  schedule::Schedule schedule_;  // the schedule of quick_
  size_t budget_ = 0;
  std::map<std::vector<size_t>, SplitCost> tried_;
};

}  // namespace

std::vector<schedule::ScheduleKind> trainingSchedules() {
  std::vector<schedule::ScheduleKind> kinds;
  for (const schedule::ScheduleRow& row : schedule::allSchedules())
    if (row.is_choice) kinds.push_back(row.kind);
  return kinds;
}

Split splitAt(const SplitChain& chain, const SplitOptions& options, std::vector<size_t> cuts) {
  Split split = stagesOf(chain, options, std::move(cuts));
  split.prediction = plan::predict(split.chain, predictOptions(chain, options));
  split.bytes_over = bytesOver(split.prediction.run, options);
  return split;
}

std::vector<Split> autoSplit(const SplitChain& chain, const SplitOptions& options, size_t alternatives) {
  ABELE_CHECK(options.devices >= 1, options.devices, " devices");
  if (!options.any_schedule || !chain.training) return Search(chain, options).run(alternatives);
  std::vector<Split> best;
  for (schedule::ScheduleKind schedule : trainingSchedules()) {
    SplitOptions with = options;
    with.schedule = schedule;
    std::vector<Split> splits = Search(chain, with).run(alternatives);
    if (best.empty() || splitCostOf(splits.front()) < splitCostOf(best.front())) best = std::move(splits);
  }
  return best;
}

}  // namespace abele::split

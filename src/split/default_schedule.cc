#include "split/default_schedule.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <optional>

#include "base/cat.h"
#include "base/error.h"
#include "plan/cost.h"
#include "plan/predict.h"
#include "split/explain.h"

namespace abele::split {
namespace {

/// A schedule replaces 1F1B, or a better schedule, only if it is predicted to save at least this share of the time.
/// Estimates are not more exact than that, and a default should not flip between equal schedules.
constexpr double kWorthwhile = 0.02;
/// The fullest device may take more memory than under 1F1B, by 1/64 of it. Workspaces of kernels vary by more.
constexpr int64_t kSlackShare = 64;
/// With more actions an update than this, searching for zero-bubble orders takes longer than the rest of the
/// compilation.
constexpr int64_t kMostActions = 30'000;

/// Limits on the search for an order that fits: the number of searches, and the number of actions in all of them. Each
/// search takes about as long as the first.
constexpr int64_t kMostSearches = 8, kMostSearched = 16'000;

/// In the order in which they are considered: schedules that need less memory come first.
constexpr schedule::ScheduleKind kCandidates[] = {schedule::ScheduleKind::kInterleaved,
                                                  schedule::ScheduleKind::kZeroBubble, schedule::ScheduleKind::kGPipe,
                                                  schedule::ScheduleKind::kZeroBubble2};

std::string mebibytesText(int64_t bytes) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.2f MiB", static_cast<double>(bytes) / (1 << 20));
  return buffer;
}

bool isWorth(int64_t step_ns, int64_t than_ns) {
  return static_cast<double>(step_ns) <= (1 - kWorthwhile) * static_cast<double>(than_ns);
}

class Chooser {
 public:
  Chooser(const ir::Graph& whole, const ir::Graph& split, const DefaultScheduleOptions& options)
      : whole_(whole), split_(split), options_(options) {
    for (const ir::Stage& stage : whole.stages) device_of_.push_back(stage.device);
    plan::Workers workers = plan::workersOf(device_of_);
    worker_of_ = std::move(workers.worker_of);
    devices_ = std::move(workers.device_of);
  }

  DefaultSchedule run() {
    const int64_t plain_ns = simulated(schedule::ScheduleKind::k1F1B).step_ns;
    if (!isWorth(leastNs(), plain_ns)) return {.reason = "no order of the work can be noticeably faster than 1f1b"};
    DefaultSchedule best{.reason = "no schedule is predicted to be noticeably faster than 1f1b"};
    std::optional<int64_t> best_ns;  // set once a schedule other than 1F1B is taken
    std::string refused;
    for (schedule::ScheduleKind kind : kCandidates) {
      if (!isCandidate(kind)) continue;
      Limited found = withinBytes(kind, plain_ns, best_ns.value_or(plain_ns));
      if (found.fits) {
        best = {kind, std::move(found.most_held), found.text};
        best_ns = found.step_ns;
      } else if (!found.text.empty()) {
        refused += cat(refused.empty() ? "" : "; ", found.text);
      }
    }
    if (!best_ns && !refused.empty()) best.reason = refused;
    return best;
  }

 private:
  bool isCandidate(schedule::ScheduleKind kind) const {
    switch (kind) {
      // Only if stages are dealt round; otherwise it is the same as 1F1B.
      case schedule::ScheduleKind::kInterleaved: return worker_of_.size() > devices_.size();
      case schedule::ScheduleKind::kZeroBubble: return splits();
      case schedule::ScheduleKind::kGPipe: return options_.all_kinds;
      // It needs more memory than 1F1B, so it is considered only where the user gave a limit.
      case schedule::ScheduleKind::kZeroBubble2: return splits() && options_.limits.any();
      default: return false;
    }
  }

  struct Limited {
    bool fits = false;
    std::vector<int64_t> most_held;
    int64_t step_ns = 0;
    std::string text;  // the gain; if it does not fit, the reason too. Empty: no gain
  };

  // The fastest order of the kind. If it does not fit, an order in which the stages of overfull devices hold fewer
  // micro-batches, as long as its gain is still worthwhile.
  Limited withinBytes(schedule::ScheduleKind kind, int64_t plain_ns, int64_t than_ns) {
    Limited tried;
    std::string first_excess;
    const int64_t actions = 3 * static_cast<int64_t>(worker_of_.size()) * options_.plan.accumulation;
    const int64_t searches = std::clamp<int64_t>(kMostSearched / actions, 1, kMostSearches);
    for (int64_t i = 0; i < searches; ++i) {
      const schedule::Simulation run = simulated(kind, tried.most_held);
      if (!isWorth(run.step_ns, than_ns)) break;
      const std::string gain = cat(schedule::scheduleName(kind), tried.most_held.empty() ? "" : " within the memory",
                                   " is predicted to take ", millisecondsText(run.step_ns), " ms a step, 1f1b ",
                                   millisecondsText(plain_ns), " ms");
      std::vector<int> full;
      const std::string excess = excessOf(kind, tried.most_held, full);
      if (excess.empty()) return {true, std::move(tried.most_held), run.step_ns, gain};
      if (first_excess.empty()) first_excess = cat(gain, ", but ", excess);
      if (!schedule::splitsBackward(kind) || !holdLess(run, full, tried.most_held)) break;
    }
    return {.text = first_excess};
  }

  // Lets every stage of these workers hold one micro-batch less than now. Returns false if no stage can.
  bool holdLess(const schedule::Simulation& run, const std::vector<int>& workers,
                std::vector<int64_t>& most_held) const {
    bool less = false;
    most_held.resize(worker_of_.size(), std::numeric_limits<int64_t>::max());
    for (size_t s = 0; s < worker_of_.size(); ++s) {
      if (std::ranges::find(workers, worker_of_[s]) == workers.end() || run.held[s] <= 1) continue;
      most_held[s] = run.held[s] - 1;
      less = true;
    }
    return less;
  }

  // Whether there is work that may run late.
  bool splits() const {
    return std::ranges::any_of(split_.nodes,
                               [](const ir::Node& node) { return node.direction == ir::Direction::kWeightGrad; });
  }

  std::vector<schedule::StageCost> costsOf(schedule::ScheduleKind kind) const {
    std::vector<schedule::StageCost> costs = options_.plan.costs;
    if (costs.empty()) costs = plan::estimateCosts(schedule::splitsBackward(kind) ? split_ : whole_);
    return schedule::splitsBackward(kind) ? costs : plan::wholeBackward(std::move(costs));
  }

  schedule::CostModel modelOf(schedule::ScheduleKind kind, std::vector<schedule::StageCost> costs) const {
    schedule::CostModel model;
    model.stages = std::move(costs);
    if (options_.machine.hasLinks())
      model.transfers = schedule::transfersOf(plan::handoversOf(schedule::splitsBackward(kind) ? split_ : whole_),
                                              device_of_, options_.machine, {});
    model.hop_ns = options_.plan.costs.empty() ? plan::kEstimatedHopNs : options_.plan.hop_ns;
    model.action_ns = plan::kEstimatedActionNs;
    model.cores = options_.cores;
    return model;
  }

  // Simulates one update; all updates of a step take the same time.
  schedule::Simulation simulated(schedule::ScheduleKind kind, const std::vector<int64_t>& most_held = {}) const {
    const std::vector<schedule::StageCost> costs = costsOf(kind);
    const plan::PredictOptions predicted{
        .schedule = kind, .accumulation = options_.plan.accumulation, .most_held = most_held};
    schedule::Schedule schedule =
        plan::makeSchedule(predicted, worker_of_, costs, options_.plan.hop_ns);  // as makePlan will make it
    plan::dropFreeWeightGradients(schedule, costs);
    return schedule::simulate(schedule, static_cast<int>(costs.size()), options_.plan.accumulation,
                              modelOf(kind, costs));
  }

  // A lower bound: the time of the work alone, whatever its order.
  int64_t leastNs() const {
    std::vector<int64_t> busy(devices_.size(), 0);
    const std::vector<schedule::StageCost> costs = costsOf(schedule::ScheduleKind::k1F1B);
    int64_t all = 0;
    for (size_t s = 0; s < costs.size(); ++s) {
      const int64_t work =
          options_.plan.accumulation * (costs[s].forward_ns + costs[s].backward_ns) + costs[s].update_ns;
      busy[worker_of_[s]] += work;
      all += work;
    }
    const int64_t slowest = *std::ranges::max_element(busy);
    return options_.cores > 0 ? std::max(slowest, all / options_.cores) : slowest;
  }

  std::vector<int64_t> peaksOf(schedule::ScheduleKind kind, const std::vector<int64_t>& most_held = {}) const {
    plan::PlanOptions asked = options_.plan;
    asked.schedule = kind;
    asked.most_held = most_held;
    return plan::peakDeviceBytes(plan::makePlan(schedule::splitsBackward(kind) ? split_ : whole_, asked));
  }

  // The reason why a schedule takes too much memory, and the workers of the overfull devices. Empty if it fits.
  std::string excessOf(schedule::ScheduleKind kind, const std::vector<int64_t>& most_held, std::vector<int>& full) {
    if (plain_peaks_.empty()) plain_peaks_ = peaksOf(schedule::ScheduleKind::k1F1B);
    int64_t fullest = *std::ranges::max_element(plain_peaks_);
    fullest += fullest / kSlackShare;
    std::vector<int64_t> peaks;
    try {
      peaks = peaksOf(kind, most_held);
    } catch (const UserError& error) {
      return cat("it cannot run: ", error.message().what);
    }
    std::string excess;
    for (size_t w = 0; w < peaks.size(); ++w) {
      const int64_t limit = options_.limits.of(devices_[w]);
      if (peaks[w] <= (limit >= 0 ? limit : fullest)) continue;
      full.push_back(static_cast<int>(w));
      if (!excess.empty()) continue;
      excess =
          cat("it needs ", mebibytesText(peaks[w]), " on device ", devices_[w],
              limit >= 0 ? ", whose limit is " : ", which is more than the fullest device under 1f1b with a margin: ",
              mebibytesText(limit >= 0 ? limit : fullest));
    }
    return excess;
  }

  const ir::Graph& whole_;
  const ir::Graph& split_;
  const DefaultScheduleOptions& options_;
  std::vector<int> worker_of_;        // by stage
  std::vector<int> devices_;          // by worker
  std::vector<int> device_of_;        // by stage
  std::vector<int64_t> plain_peaks_;  // by worker, under 1F1B; empty until needed
};

}  // namespace

bool canCompareSchedules(const ir::Graph& whole, const plan::PlanOptions& options, std::string& why_not) {
  const auto stages = static_cast<int64_t>(whole.stages.size());
  const bool one_device =
      std::ranges::all_of(whole.stages, [&](const ir::Stage& s) { return s.device == whole.stages.front().device; });
  const plan::Locations& l = options.locations;
  if (one_device)
    why_not = "one device";
  else if (3 * stages * options.accumulation > kMostActions)
    why_not = "too many actions to compare schedules";
  else if (l.weights.off_chip || l.optimizer_state.off_chip || l.accumulators.off_chip || l.activations.off_chip)
    why_not = "some tensors are off chip, and the time to move them is not predicted";
  else if (!options.costs.empty() && static_cast<int64_t>(options.costs.size()) != stages)
    why_not = "the given costs are for other stages";
  return why_not.empty();
}

DefaultSchedule defaultSchedule(const ir::Graph& whole, const ir::Graph& split, const DefaultScheduleOptions& options) {
  DefaultSchedule choice;
  if (!canCompareSchedules(whole, options.plan, choice.reason)) return choice;
  return Chooser(whole, split, options).run();
}

}  // namespace abele::split

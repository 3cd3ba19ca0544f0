// Zero-bubble orders. Several candidates are made and timed under the stages' costs, and the fastest is taken. 1F1B is
// one of them, so the result is never slower. Greedy candidates keep a clock. A free worker starts a backward or a
// forward that is ready; it starts a weight gradient only if it would wait otherwise.
#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>

#include "base/error.h"
#include "schedule/schedule_parts.h"
#include "schedule/simulate.h"

namespace abele::schedule {
namespace {

using ir::Direction;

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
// With more actions a step than this, fewer candidates are tried, so that the choice takes seconds for a thousand
// devices.
constexpr int64_t kManyActions = 500'000;

struct Problem {
  int num_stages = 0;
  std::vector<int> worker_of;
  int64_t micro_batches = 0;
  std::vector<StageCost> costs;
  std::vector<int64_t> limits;  // by stage: micro-batches between forward and weight gradient
  int64_t hop_ns = 0;

  int64_t limit(int stage) const { return limits[static_cast<size_t>(stage)]; }
};

// The preferences of a greedy candidate.
struct Policy {
  std::vector<int64_t> eager;  // by stage: forward goes first while fewer micro-batches wait for backward
  double gap = 0;              // a weight gradient starts only if at least this share of it fits before the next action
};

class GreedyClock {
 public:
  GreedyClock(const Problem& problem, const Policy& policy)
      : p_(problem), policy_(policy), stages_(problem.num_stages) {
    for (Stage& stage : stages_) {
      stage.forward_end.assign(static_cast<size_t>(p_.micro_batches), kNever);
      stage.backward_end.assign(static_cast<size_t>(p_.micro_batches), kNever);
    }
    const auto workers = static_cast<size_t>(1 + *std::max_element(p_.worker_of.begin(), p_.worker_of.end()));
    schedule_.micro_batches = p_.micro_batches;
    schedule_.workers.resize(workers);
    free_at_.assign(workers, 0);
    stages_of_.resize(workers);
    for (int s = p_.num_stages - 1; s >= 0; --s) stages_of_[static_cast<size_t>(worker(s))].push_back(s);
  }

  Schedule run() {
    for (size_t w = 0; w < free_at_.size(); ++w) looks_.push({0, static_cast<int>(w)});
    while (!looks_.empty()) {
      const auto [now, w] = looks_.top();
      looks_.pop();
      if (free_at_[static_cast<size_t>(w)] <= now) look(w, now);
    }
    for (const Stage& stage : stages_)
      ABELE_CHECK(stage.weight_grads == p_.micro_batches, "a zero-bubble order stopped before its end");
    return std::move(schedule_);
  }

 private:
  struct Stage {
    int64_t forwards = 0, backwards = 0, weight_grads = 0;  // started so far
    std::vector<int64_t> forward_end, backward_end;         // by micro-batch
  };
  struct Choice {
    int stage = -1;
    int64_t micro_batch = kNever;
    // Prefers the lowest micro-batch, then the latest stage: stages are offered from the last to the first.
    void offer(int s, int64_t k) {
      if (k < micro_batch) *this = {s, k};
    }
  };

  int worker(int s) const { return p_.worker_of[static_cast<size_t>(s)]; }
  const StageCost& cost(int s) const { return p_.costs[static_cast<size_t>(s)]; }

  // The time at which a stage can use the result of another stage.
  int64_t arrival(int maker, int reader, const std::vector<int64_t>& ends, int64_t micro_batch) const {
    const int64_t end = ends[static_cast<size_t>(micro_batch)];
    return end == kNever || worker(maker) == worker(reader) ? end : end + p_.hop_ns;
  }
  int64_t forwardReady(int s) const {
    const Stage& stage = stages_[static_cast<size_t>(s)];
    if (stage.forwards == p_.micro_batches || stage.forwards - stage.weight_grads >= p_.limit(s)) return kNever;
    return s == 0 ? 0 : arrival(s - 1, s, stages_[static_cast<size_t>(s) - 1].forward_end, stage.forwards);
  }
  int64_t backwardReady(int s) const {
    const Stage& stage = stages_[static_cast<size_t>(s)];
    if (stage.backwards == stage.forwards) return kNever;
    const size_t k = static_cast<size_t>(stage.backwards);
    const int64_t own = stage.forward_end[k];
    if (s + 1 == p_.num_stages) return own;
    return std::max(own, arrival(s + 1, s, stages_[static_cast<size_t>(s) + 1].backward_end, stage.backwards));
  }

  void look(int w, int64_t now) {
    Choice forward, eager, backward, weight_grad;
    int64_t next = kNever;  // the earliest known time at which a forward or backward can start
    for (int s : stages_of_[static_cast<size_t>(w)]) {
      const Stage& stage = stages_[static_cast<size_t>(s)];
      const int64_t forward_at = forwardReady(s), backward_at = backwardReady(s);
      if (forward_at <= now) {
        forward.offer(s, stage.forwards);
        if (stage.forwards - stage.backwards < policy_.eager[static_cast<size_t>(s)]) eager.offer(s, stage.forwards);
      }
      if (backward_at <= now) backward.offer(s, stage.backwards);
      if (stage.weight_grads < stage.backwards) weight_grad.offer(s, stage.weight_grads);
      next = std::min({next, forward_at, backward_at});
    }
    if (eager.stage >= 0) return start(w, eager, Direction::kForward, now);
    if (backward.stage >= 0) return start(w, backward, Direction::kBackward, now);
    if (forward.stage >= 0) return start(w, forward, Direction::kForward, now);
    if (weight_grad.stage >= 0) {
      const double needed = policy_.gap * static_cast<double>(cost(weight_grad.stage).weight_grad_ns);
      const Stage& stage = stages_[static_cast<size_t>(weight_grad.stage)];
      const bool is_full = stage.forwards - stage.weight_grads >= p_.limit(weight_grad.stage);
      if (next == kNever || is_full || static_cast<double>(next - now) >= needed)
        return start(w, weight_grad, Direction::kWeightGrad, now);
    }
    if (next != kNever) looks_.push({next, w});
  }

  void start(int w, const Choice& choice, Direction direction, int64_t now) {
    const int s = choice.stage;
    Stage& stage = stages_[static_cast<size_t>(s)];
    const size_t k = static_cast<size_t>(choice.micro_batch);
    int64_t end = now;
    int reader = -1;  // the stage that waits for this result
    if (direction == Direction::kForward) {
      stage.forward_end[k] = end += cost(s).forward_ns;
      ++stage.forwards;
      reader = s + 1 < p_.num_stages ? s + 1 : -1;
    } else if (direction == Direction::kBackward) {
      stage.backward_end[k] = end += cost(s).backward_ns;
      ++stage.backwards;
      reader = s - 1;
    } else {
      end += cost(s).weight_grad_ns;
      ++stage.weight_grads;
    }
    schedule_.workers[static_cast<size_t>(w)].push_back(act(s, direction, choice.micro_batch));
    free_at_[static_cast<size_t>(w)] = end;
    looks_.push({end, w});
    if (reader >= 0 && worker(reader) != w) looks_.push({end + p_.hop_ns, worker(reader)});
  }

  struct Look {
    int64_t time_ns;
    int worker;
    // At equal times, workers of late stages look first, because workers of earlier stages wait for them.
    bool operator<(const Look& other) const {
      return std::tuple(other.time_ns, worker) < std::tuple(time_ns, other.worker);
    }
  };

  const Problem& p_;
  const Policy& policy_;
  std::vector<Stage> stages_;
  std::vector<std::vector<int>> stages_of_;  // by worker, the last stage first
  std::vector<int64_t> free_at_;
  std::priority_queue<Look> looks_;
  Schedule schedule_;
};

// 1F1B in which every weight gradient runs `delay(stage)` backwards late.
template <class Delay>
Schedule fixedOrder(const Problem& p, Delay&& delay) {
  std::vector<std::vector<Action>> stages;
  for (int s = 0; s < p.num_stages; ++s)
    stages.push_back(stageOrder(s, p.num_stages - 1 - s, p.micro_batches, delay(s)));
  return merge(stages, p.worker_of, p.micro_batches, p.micro_batches);
}

std::vector<Policy> policies(const Problem& p) {
  std::vector<std::vector<int64_t>> eager(5, std::vector<int64_t>(static_cast<size_t>(p.num_stages)));
  for (int s = 0; s < p.num_stages; ++s) {
    const int64_t behind = p.num_stages - s;
    eager[0][static_cast<size_t>(s)] = behind;  // as in 1F1B
    eager[1][static_cast<size_t>(s)] = 1;
    eager[2][static_cast<size_t>(s)] = std::min(p.limit(s), 2 * behind - 1);
    eager[3][static_cast<size_t>(s)] = 0;
    eager[4][static_cast<size_t>(s)] = p.limit(s);
  }
  const bool many = 3 * p.num_stages * p.micro_batches > kManyActions;
  std::vector<Policy> all;
  for (size_t e = 0; e < (many ? 2 : eager.size()); ++e)
    for (double gap : many ? std::vector<double>{0.5} : std::vector<double>{0, 0.25, 0.5, 0.75, 1})
      all.push_back({eager[e], gap});
  return all;
}

// For comparison, smaller is better: the step, then the longest waiting of a worker, then all waiting, then memory.
auto worth(const Schedule& schedule, const Problem& p) {
  const Simulation run = simulate(schedule, p.num_stages, p.micro_batches, {.stages = p.costs, .hop_ns = p.hop_ns});
  ABELE_CHECK(run.complete, "a zero-bubble order cannot run");
  int64_t longest = 0, all = 0, held = 0;
  for (const WorkerTimes& w : run.workers) {
    longest = std::max(longest, w.idle_ns);
    all += w.idle_ns;
  }
  for (int64_t h : run.held) held += h;
  return std::tuple(run.step_ns, longest, all, held);
}

// Backward is split in two; weight gradients (W) wait until a worker would idle. The stages' costs decide the order,
// which is never slower than 1F1B under these costs. most: the most micro-batches that a stage holds between forward
// and W.
Schedule zeroBubble(const ScheduleRequest& request, int64_t most) {
  checkCounts(request);
  const int num_stages = request.numStages();
  const int64_t accumulation = request.accumulation;
  const auto isForStages = [&](size_t size) { return size == 0 || static_cast<int>(size) == num_stages; };
  ABELE_CHECK(isForStages(request.costs.size()) && isForStages(request.most_held.size()), request.costs.size(),
              " costs and ", request.most_held.size(), " limits for ", num_stages, " stages");
  Problem p{num_stages, request.worker_of, accumulation, request.costs, request.most_held, request.hop_ns};
  p.limits.resize(static_cast<size_t>(num_stages), most);
  for (int64_t& limit : p.limits) limit = std::clamp<int64_t>(limit, 1, most);
  if (p.costs.empty()) p.costs.resize(static_cast<size_t>(num_stages));
  Schedule best = GreedyClock(p, policies(p).front()).run();
  auto least = worth(best, p);
  auto consider = [&](Schedule schedule) {
    const auto value = worth(schedule, p);
    if (value >= least) return;
    least = value;
    best = std::move(schedule);
  };
  // A stage holds as many as under 1F1B, and one more for each backward that its weight gradients are late.
  const auto fits = [&](const auto& late) {
    for (int s = 0; s < num_stages; ++s)
      if (std::min<int64_t>(accumulation, num_stages - s) + late(s) > p.limit(s)) return false;
    return true;
  };
  const auto at_once = [](int) { return 0; };
  const auto late = [](int s) { return s; };
  if (fits(at_once)) consider(fixedOrder(p, at_once));
  if (fits(late)) consider(fixedOrder(p, late));
  for (const Policy& policy : policies(p)) consider(GreedyClock(p, policy).run());
  for (int s = 0; s < num_stages; ++s)
    best.workers[static_cast<size_t>(p.worker_of[static_cast<size_t>(s)])].push_back(
        act(s, Direction::kUpdate, accumulation - 1));
  return repeatGroup(best, request.device_iterations);
}

}  // namespace

// Every stage may hold the maximum of 1F1B. Source: Qi et al. 2023 (ZB-H1), sections 2 and 3.
Schedule scheduleZeroBubble(const ScheduleRequest& request) { return zeroBubble(request, request.numStages()); }

// Every stage may hold twice that, less one. Source: Qi et al. 2023 (ZB-H2).
Schedule scheduleZeroBubble2(const ScheduleRequest& request) {
  return zeroBubble(request, 2 * request.numStages() - 1);
}

}  // namespace abele::schedule

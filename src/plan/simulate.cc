#include "plan/simulate.h"

#include <algorithm>
#include <deque>

#include "base/error.h"

namespace abele::plan {
namespace {

using ir::Direction;

int64_t timeOf(const CostModel& costs, const Action& a) {
  if (costs.stages.empty()) return a.direction == Direction::kUpdate ? 0 : 1;
  const StageCost& cost = costs.stages[static_cast<size_t>(a.stage)];
  switch (a.direction) {
    case Direction::kForward: return cost.forward_ns;
    case Direction::kBackward: return cost.backward_ns;
    case Direction::kWeightGrad: return cost.weight_grad_ns;
    case Direction::kUpdate: return cost.update_ns;
  }
  return 0;
}

// Workers run their actions in order, so each needs a look only when something it may wait for has ended. The order in
// which they are looked at does not matter: an action's start depends on ends alone.
class Simulator {
 public:
  Simulator(const Schedule& schedule, int num_stages, int64_t accumulation, const CostModel& costs)
      : schedule_(schedule),
        num_stages_(num_stages),
        accumulation_(accumulation),
        costs_(costs),
        worker_of_(static_cast<size_t>(num_stages), -1),
        head_(schedule.workers.size(), 0),
        queued_(schedule.workers.size(), true) {
    const size_t tasks = static_cast<size_t>(num_stages * schedule.micro_batches);
    forward_end_.assign(tasks, -1);
    backward_end_.assign(tasks, -1);
    const size_t groups = static_cast<size_t>(schedule.micro_batches / std::max<int64_t>(accumulation, 1)) + 1;
    work_.resize(groups);
    updates_.resize(groups);
  }

  Simulation run() {
    const size_t workers = schedule_.workers.size();
    result_.actions.resize(workers);
    result_.workers.resize(workers);
    for (size_t w = 0; w < workers; ++w) {
      result_.actions[w].reserve(schedule_.workers[w].size());
      queue_.push_back(w);
      for (const Action& a : schedule_.workers[w]) {
        worker_of_[static_cast<size_t>(a.stage)] = static_cast<int>(w);
        ++barrierOf(a).left;
      }
    }
    while (!queue_.empty()) {
      const size_t w = queue_.front();
      queue_.pop_front();
      queued_[w] = false;
      while (head_[w] < schedule_.workers[w].size() && advance(w)) {
      }
    }
    for (size_t w = 0; w < workers; ++w) finish(w);
    countHeld();
    return std::move(result_);
  }

 private:
  // Actions of a group that others wait for as a whole.
  struct Barrier {
    int64_t left = 0, end_ns = 0;
  };

  size_t groupOf(const Action& a) const { return static_cast<size_t>(a.micro_batch / accumulation_); }
  Barrier& barrierOf(const Action& a) {
    return a.direction == Direction::kUpdate ? updates_[groupOf(a)] : work_[groupOf(a)];
  }
  size_t index(int64_t stage, int64_t micro_batch) const {
    return static_cast<size_t>(stage * schedule_.micro_batches + micro_batch);
  }

  // Raises `ready` to the time at which this result can be read; false while nobody knows it.
  bool wait(const std::vector<int64_t>& ends, int64_t stage, const Action& a, int64_t& ready) const {
    const int64_t end = ends[index(stage, a.micro_batch)];
    if (end < 0) return false;
    const bool hop = worker_of_[static_cast<size_t>(stage)] != worker_of_[static_cast<size_t>(a.stage)];
    ready = std::max(ready, end + (hop ? costs_.hop_ns : 0));
    return true;
  }
  static bool wait(const Barrier& barrier, int64_t& ready) {
    ready = std::max(ready, barrier.end_ns);
    return barrier.left == 0;
  }

  bool isReady(const Action& a, int64_t& ready) const {
    switch (a.direction) {
      case Direction::kForward:
        return (groupOf(a) == 0 || wait(updates_[groupOf(a) - 1], ready)) &&
               (a.stage == 0 || wait(forward_end_, a.stage - 1, a, ready));
      case Direction::kBackward:
        return wait(forward_end_, a.stage, a, ready) &&
               (a.stage == num_stages_ - 1 || wait(backward_end_, a.stage + 1, a, ready));
      case Direction::kWeightGrad: return wait(backward_end_, a.stage, a, ready);
      case Direction::kUpdate: return wait(work_[groupOf(a)], ready);
    }
    return false;
  }

  bool advance(size_t w) {
    const Action& a = schedule_.workers[w][head_[w]];
    auto& done = result_.actions[w];
    int64_t ready = done.empty() ? 0 : done.back().end_ns;
    if (!isReady(a, ready)) return false;
    ++head_[w];
    const int64_t end = ready + timeOf(costs_, a);
    done.push_back({a, ready, end});
    result_.workers[w].busy_ns += end - ready;
    if (a.direction == Direction::kForward) forward_end_[index(a.stage, a.micro_batch)] = end;
    if (a.direction == Direction::kBackward) backward_end_[index(a.stage, a.micro_batch)] = end;
    Barrier& barrier = barrierOf(a);
    barrier.end_ns = std::max(barrier.end_ns, end);
    if (--barrier.left == 0)
      for (size_t other = 0; other < head_.size(); ++other) wake(other);
    if (a.direction == Direction::kForward) wakeStage(a.stage + 1);
    if (a.direction == Direction::kBackward) wakeStage(a.stage - 1);
    return true;
  }

  void wakeStage(int64_t stage) {
    if (stage >= 0 && stage < num_stages_ && worker_of_[static_cast<size_t>(stage)] >= 0)
      wake(static_cast<size_t>(worker_of_[static_cast<size_t>(stage)]));
  }
  void wake(size_t worker) {
    if (queued_[worker]) return;
    queued_[worker] = true;
    queue_.push_back(worker);
  }

  void finish(size_t w) {
    const auto& actions = schedule_.workers[w];
    auto& done = result_.actions[w];
    if (!done.empty()) {
      result_.step_ns = std::max(result_.step_ns, done.back().end_ns);
    }
    for (size_t i = 1; i < done.size(); ++i) {
      const Action &before = done[i - 1].action, &a = done[i].action;
      const bool same_group =
          a.direction != Direction::kUpdate && before.direction != Direction::kUpdate && groupOf(a) == groupOf(before);
      if (same_group) result_.workers[w].idle_ns += done[i].start_ns - done[i - 1].end_ns;
    }
    result_.complete = result_.complete && head_[w] == actions.size();
    for (; head_[w] < actions.size(); ++head_[w]) done.push_back({actions[head_[w]], -1, -1});
    for (const MemoryPoint& point : memoryOverTime(result_, costs_, w))
      result_.workers[w].peak_bytes = std::max(result_.workers[w].peak_bytes, point.bytes);
  }

  void countHeld() {
    std::vector<int64_t> now(static_cast<size_t>(num_stages_), 0), weight_grads(now.size(), 0);
    result_.held.assign(now.size(), 0);
    for (const auto& actions : schedule_.workers)
      for (const Action& a : actions)
        weight_grads[static_cast<size_t>(a.stage)] += a.direction == Direction::kWeightGrad;
    for (const auto& actions : schedule_.workers)
      for (const Action& a : actions) {
        const size_t s = static_cast<size_t>(a.stage);
        const Direction last = weight_grads[s] > 0 ? Direction::kWeightGrad : Direction::kBackward;
        if (a.direction == Direction::kForward) result_.held[s] = std::max(result_.held[s], ++now[s]);
        if (a.direction == last) --now[s];
      }
  }

  const Schedule& schedule_;
  int num_stages_;
  int64_t accumulation_;
  const CostModel& costs_;
  std::vector<int> worker_of_;
  std::vector<size_t> head_;
  std::vector<bool> queued_;
  std::deque<size_t> queue_;
  std::vector<int64_t> forward_end_, backward_end_;  // by (stage, micro-batch)
  std::vector<Barrier> work_, updates_;              // by group
  Simulation result_;
};

}  // namespace

double Simulation::bubble() const {
  if (step_ns == 0 || workers.empty()) return 0;
  double busy = 0;
  for (const WorkerTimes& w : workers) busy += static_cast<double>(w.busy_ns);
  return 1 - busy / (static_cast<double>(step_ns) * static_cast<double>(workers.size()));
}

Simulation simulate(const Schedule& schedule, int num_stages, int64_t accumulation, const CostModel& costs) {
  ABELE_CHECK(costs.stages.empty() || static_cast<int>(costs.stages.size()) == num_stages, costs.stages.size(),
              " costs for ", num_stages, " stages");
  ABELE_CHECK(costs.memory.empty() || static_cast<int>(costs.memory.size()) == num_stages, costs.memory.size(),
              " memory sizes for ", num_stages, " stages");
  return Simulator(schedule, num_stages, accumulation, costs).run();
}

// What forward keeps lives from its start to the end of the last action of the same micro-batch and stage.
std::vector<MemoryPoint> memoryOverTime(const Simulation& simulation, const CostModel& costs, size_t worker) {
  std::vector<MemoryPoint> points{{0, 0}};
  if (costs.memory.empty()) return points;
  const auto& actions = simulation.actions[worker];
  std::vector<bool> here(costs.memory.size(), false), splits(here.size(), false), trains(here.size(), false);
  for (const TimedAction& t : actions) {
    here[static_cast<size_t>(t.action.stage)] = true;
    if (t.action.direction == Direction::kWeightGrad) splits[static_cast<size_t>(t.action.stage)] = true;
    if (t.action.direction == Direction::kBackward) trains[static_cast<size_t>(t.action.stage)] = true;
  }
  int64_t constant = 0, transient = 0;
  for (size_t s = 0; s < here.size(); ++s) {
    if (!here[s]) continue;
    constant += costs.memory[s].persistent_bytes;
    transient = std::max(transient, costs.memory[s].transient_bytes);
  }
  points.front().bytes = constant + transient;
  auto change = [&](int64_t time_ns, int64_t bytes) {
    if (points.back().time_ns != time_ns) points.push_back({time_ns, points.back().bytes});
    points.back().bytes += bytes;
  };
  // A worker's actions follow one another, so their ends and starts are in time order already.
  for (const TimedAction& t : actions) {
    if (t.start_ns < 0) break;
    const size_t s = static_cast<size_t>(t.action.stage);
    const int64_t bytes = costs.memory[s].stash_bytes;
    if (t.action.direction == Direction::kForward) change(t.start_ns, bytes);
    const Direction last = splits[s] ? Direction::kWeightGrad : trains[s] ? Direction::kBackward : Direction::kForward;
    if (t.action.direction == last) change(t.end_ns, -bytes);
  }
  return points;
}

}  // namespace abele::plan

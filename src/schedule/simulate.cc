#include "schedule/simulate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <queue>

#include "base/error.h"
#include "schedule/ring.h"

namespace abele::schedule {
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

int64_t transientBytes(const StageMemory& memory, bool is_apart) {
  return is_apart ? memory.apart_transient_bytes : memory.transient_bytes;
}

// A ring of frames of a stage.
struct Ring {
  int64_t stage = 0;
  int64_t bytes = 0;
  std::vector<Task> users;
  int64_t frames = 1;
  std::vector<size_t> sent = {};  // indices in Simulator::transfers_ of the transfers that take from it

  bool isOwn() const {
    return std::all_of(users.begin(), users.end(), [&](const Task& t) { return t.stage == stage; });
  }
  // The stage's task that takes a frame.
  Direction maker() const {
    Direction first = Direction::kUpdate;
    for (const Task& user : users)
      if (user.stage == stage) first = std::min(first, user.direction);
    return first;
  }
};

// The rings of one stage: its stash, or StageMemory::rings if these take fewer bytes.
std::vector<Ring> ringsOf(int64_t stage, const StageMemory& memory, const RingLengths& lengths) {
  Ring stash{.stage = stage, .bytes = memory.stash_bytes, .users = memory.users};
  if (stash.users.empty())
    for (Direction direction : {Direction::kForward, Direction::kBackward, Direction::kWeightGrad})
      stash.users.push_back({static_cast<int32_t>(stage), direction});
  stash.frames = lengths.of(stash.users);
  std::vector<Ring> apart;
  int64_t bytes = 0;
  for (const StageRing& further : memory.rings) {
    Ring& ring = apart.emplace_back(Ring{.stage = stage, .bytes = further.bytes, .users = further.users});
    ring.frames = ring.isOwn() ? lengths.of(ring.users) : stash.frames;
    bytes += ring.frames * ring.bytes;
  }
  if (!apart.empty() && bytes < stash.frames * stash.bytes) return apart;
  return {stash};
}

// Workers run their actions in order. So the simulator looks at a worker only when something that it may wait for has
// ended. The order of these looks does not matter, because an action's start depends on ends alone.
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
    ends_.resize(static_cast<size_t>(num_stages));
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
      for (const Action& a : schedule_.workers[w]) {
        worker_of_[static_cast<size_t>(a.stage)] = static_cast<int>(w);
        endsOf(a).resize(static_cast<size_t>(schedule_.micro_batches), -1);
        ++barrierOf(a).left;
      }
    }
    makeRings();
    noteTransfers();
    const bool shares_cores = costs_.cores > 0 && static_cast<size_t>(costs_.cores) < workers;
    transfers_.empty() && !shares_cores ? runAlone() : runInTimeOrder();
    for (size_t w = 0; w < workers; ++w) finish(w);
    result_.step_ns += costs_.host_ns;
    countHeld();
    return std::move(result_);
  }

 private:
  void makeRings() {
    const size_t stages = costs_.memory.size();
    if (stages == 0) return;
    const RingLengths lengths(schedule_, static_cast<int>(stages), accumulation_);
    taken_by_.resize(4 * stages);
    readers_.resize(stages);
    for (size_t s = 0; s < stages; ++s) {
      std::vector<Ring> rings = ringsOf(static_cast<int64_t>(s), costs_.memory[s], lengths);
      result_.frames.push_back(rings.front().frames);
      result_.is_apart.push_back(rings.size() > 1);
      for (Ring& ring : rings) {
        taken_by_[indexOf({static_cast<int32_t>(s), ring.maker()})].push_back(rings_.size());
        rings_.push_back(std::move(ring));
      }
    }
  }

  // The actions of a group, for tasks that wait for all of them.
  struct Barrier {
    int64_t left = 0, end_ns = 0;
    int worker = -1;  // the worker with the last end
  };

  size_t groupOf(const Action& a) const { return static_cast<size_t>(a.micro_batch / accumulation_); }
  Barrier& barrierOf(const Action& a) {
    return a.direction == Direction::kUpdate ? updates_[groupOf(a)] : work_[groupOf(a)];
  }
  std::vector<int64_t>& endsOf(const Action& a) {
    return ends_[static_cast<size_t>(a.stage)][static_cast<size_t>(a.direction)];
  }
  int workerOf(int64_t stage) const { return worker_of_[static_cast<size_t>(stage)]; }

  // Raises `ready` to the time at which `reader` learns of this end. Returns false if the end is not known yet.
  bool wait(const Task& maker, int64_t micro_batch, const Action& reader, int64_t& ready) const {
    const auto& ends = ends_[static_cast<size_t>(maker.stage)][static_cast<size_t>(maker.direction)];
    const int64_t end = ends.empty() ? -1 : ends[static_cast<size_t>(micro_batch)];
    if (end < 0) return false;
    const bool hops =
        workerOf(maker.stage) != workerOf(reader.stage) && !isBrought(maker, {reader.stage, reader.direction});
    ready = std::max(ready, end + (hops ? costs_.hop_ns : 0));
    return true;
  }
  bool wait(const Barrier& barrier, const Action& reader, int64_t& ready) const {
    if (barrier.left > 0) return false;
    const bool hops = barrier.worker >= 0 && barrier.worker != workerOf(reader.stage);
    ready = std::max(ready, barrier.end_ns + (hops ? costs_.hop_ns : 0));
    return true;
  }

  // Waits until the frames that an action takes are free, and until transfers that read these frames have arrived.
  bool waitForFrames(const Action& a, int64_t& ready) const {
    if (rings_.empty()) return true;
    for (size_t r : taken_by_[indexOf({a.stage, a.direction})]) {
      const Ring& ring = rings_[r];
      const int64_t before = a.micro_batch - ring.frames;
      if (before < 0) continue;
      for (const Task& user : ring.users)
        if (runs(user) && user.direction != Direction::kUpdate && !wait(user, before, a, ready)) return false;
      for (size_t i : ring.sent)
        if (!waitForArrival(i, before, ready)) return false;
    }
    return true;
  }

  // --- transfers -----------------------------------------------------------------------------------------------------

  static size_t indexOf(const Task& task) {
    return 4 * static_cast<size_t>(task.stage) + static_cast<size_t>(task.direction);
  }
  bool runs(const Task& task) const {
    return !ends_[static_cast<size_t>(task.stage)][static_cast<size_t>(task.direction)].empty();
  }

  // If the schedule does not run weight gradients separately, they are part of the backward.
  Task asRun(Task task) const {
    if (task.direction == Direction::kWeightGrad && !runs(task)) task.direction = Direction::kBackward;
    return task;
  }

  void noteTransfers() {
    result_.transfers.resize(costs_.transfers.size());
    sent_.resize(4 * static_cast<size_t>(num_stages_));
    awaited_.resize(sent_.size());
    for (size_t i = 0; i < costs_.transfers.size(); ++i) {
      Moving moving{asRun(costs_.transfers[i].from), asRun(costs_.transfers[i].to), i, {}};
      if (!runs(moving.from) || !runs(moving.to)) continue;
      moving.arrivals.assign(static_cast<size_t>(schedule_.micro_batches), -1);
      sent_[indexOf(moving.from)].push_back(transfers_.size());
      awaited_[indexOf(moving.to)].push_back(transfers_.size());
      const size_t link = static_cast<size_t>(costs_.transfers[i].link);
      if (link_free_.size() <= link) link_free_.resize(link + 1, 0);
      transfers_.push_back(std::move(moving));
    }
    if (transfers_.empty()) return;
    for (size_t i = 0; !rings_.empty() && i < transfers_.size(); ++i) ringOf(i).sent.push_back(i);
    // A reader on another worker gets a copy, so the sender's frame is free once all transfers have arrived.
    for (Ring& ring : rings_) {
      const auto is_copied = [&](const Task& user) {
        return std::any_of(transfers_.begin(), transfers_.end(), [&](const Moving& m) {
          return m.from.stage == ring.stage && workerOf(m.to.stage) == workerOf(user.stage);
        });
      };
      std::erase_if(ring.users,
                    [&](const Task& user) { return workerOf(user.stage) != workerOf(ring.stage) && is_copied(user); });
    }
  }

  // The ring that the transfer's reader uses, or else the first ring of the sending stage.
  Ring& ringOf(size_t transfer) {
    const int32_t stage = transfers_[transfer].from.stage;
    const Task& reader = transfers_[transfer].to;
    const auto first =
        std::lower_bound(rings_.begin(), rings_.end(), stage, [](const Ring& r, int32_t s) { return r.stage < s; });
    for (auto it = first; it != rings_.end() && it->stage == stage; ++it)
      if (std::find(it->users.begin(), it->users.end(), reader) != it->users.end()) return *it;
    return *first;
  }

  bool isBrought(const Task& maker, const Task& reader) const {
    if (transfers_.empty()) return false;
    const auto& sent = sent_[indexOf(maker)];
    return std::any_of(sent.begin(), sent.end(), [&](size_t i) { return transfers_[i].to == reader; });
  }

  // Called in the order of the ends of tasks, so that the task that is ready first sends first.
  void send(const Action& a, int64_t end) {
    if (transfers_.empty()) return;
    for (size_t i : sent_[indexOf({a.stage, a.direction})]) {
      const Transfer& transfer = costs_.transfers[transfers_[i].index];
      TransferTimes& times = result_.transfers[transfers_[i].index];
      int64_t& link_free = link_free_[static_cast<size_t>(transfer.link)];
      const int64_t start = std::max(end, link_free);
      link_free = start + transfer.time_ns;
      transfers_[i].arrivals[static_cast<size_t>(a.micro_batch)] = link_free;
      ++times.messages;
      times.busy_ns += transfer.time_ns;
      times.waiting_ns += start - end;
    }
  }

  bool haveArrived(const Action& a, int64_t& ready) const {
    if (transfers_.empty()) return true;
    for (size_t i : awaited_[indexOf({a.stage, a.direction})])
      if (!waitForArrival(i, a.micro_batch, ready)) return false;
    return true;
  }

  bool waitForArrival(size_t transfer, int64_t micro_batch, int64_t& ready) const {
    const int64_t arrival = transfers_[transfer].arrivals[static_cast<size_t>(micro_batch)];
    ready = std::max(ready, arrival);
    return arrival >= 0;
  }

  // The time at which the gradients of a stage are summed up. A worker's sums run one after another, in the order in
  // which they can begin. If two can begin at once, the later stage goes first, because backward reaches it first.
  // Requires: all actions of the group have ended.
  int64_t reducedAt(const Action& update) const {
    const int worker = workerOf(update.stage);
    const int64_t all = work_[groupOf(update)].end_ns;
    std::vector<std::pair<int64_t, int32_t>> begins;
    for (int32_t s = 0; s < num_stages_; ++s) {
      if (workerOf(s) != worker) continue;
      int64_t own = costs_.reduces_early ? 0 : all;
      for (Direction d : {Direction::kForward, Direction::kBackward, Direction::kWeightGrad})
        if (costs_.reduces_early && runs({s, d}))
          own = std::max(
              own, ends_[static_cast<size_t>(s)][static_cast<size_t>(d)][static_cast<size_t>(update.micro_batch)]);
      begins.emplace_back(own, -s);
    }
    std::sort(begins.begin(), begins.end());
    int64_t now = 0;
    for (const auto& [begin, minus_s] : begins) {
      now = std::max(now, begin) + costs_.reduce_ns[static_cast<size_t>(-minus_s)];
      if (-minus_s == update.stage) break;
    }
    return now;
  }

  bool isReady(const Action& a, int64_t& ready) const {
    if (!haveArrived(a, ready) || !waitForFrames(a, ready)) return false;
    const auto done = [&](int64_t stage, Direction direction) {
      return wait({static_cast<int32_t>(stage), direction}, a.micro_batch, a, ready);
    };
    switch (a.direction) {
      case Direction::kForward:
        return (groupOf(a) == 0 || wait(updates_[groupOf(a) - 1], a, ready)) &&
               (a.stage == 0 || done(a.stage - 1, Direction::kForward));
      case Direction::kBackward:
        return done(a.stage, Direction::kForward) &&
               (a.stage == num_stages_ - 1 || done(a.stage + 1, Direction::kBackward));
      case Direction::kWeightGrad: return done(a.stage, Direction::kBackward);
      case Direction::kUpdate:
        if (!wait(work_[groupOf(a)], a, ready)) return false;
        if (!costs_.reduce_ns.empty()) ready = std::max(ready, reducedAt(a));
        return true;
    }
    return false;
  }

  // Whether the start of a worker's next action is known.
  bool isNextReady(size_t w, int64_t& ready) const {
    if (head_[w] == schedule_.workers[w].size()) return false;
    const auto& done = result_.actions[w];
    ready = done.empty() ? 0 : done.back().end_ns + costs_.action_ns;
    return isReady(schedule_.workers[w][head_[w]], ready);
  }

  // Records that the next action of a worker ran.
  void complete(size_t w, int64_t start, int64_t end) {
    const Action& a = schedule_.workers[w][head_[w]++];
    result_.actions[w].push_back({a, start, end});
    endsOf(a)[static_cast<size_t>(a.micro_batch)] = end;
    Barrier& barrier = barrierOf(a);
    if (end >= barrier.end_ns) barrier.worker = static_cast<int>(w);
    barrier.end_ns = std::max(barrier.end_ns, end);
    --barrier.left;
    send(a, end);
  }

  // Every worker has a core of its own, so ends follow from starts.
  void runAlone() {
    noteReaders();
    for (size_t w = 0; w < head_.size(); ++w) queue_.push_back(w);
    while (!queue_.empty()) {
      const size_t w = queue_.front();
      queue_.pop_front();
      queued_[w] = false;
      for (int64_t ready = 0; isNextReady(w, ready);) {
        const Action& a = schedule_.workers[w][head_[w]];
        const int64_t time = timeOf(costs_, a);
        result_.workers[w].busy_ns += time;
        complete(w, ready, ready + time);
        wakeAfter(a);
      }
    }
  }

  // Messages share links, so ends are handled in the order of time. Workers share cores: if more workers than cores are
  // busy, all of them slow down. `worked` is the time that an action which was always busy would have worked by now.
  void runInTimeOrder() {
    noteReaders();
    using Due = std::pair<double, size_t>;  // a time, and the worker whose next action starts or ends then
    std::priority_queue<Due, std::vector<Due>, std::greater<>> starts, ends;  // ends: by `worked`
    std::vector<int64_t> start_ns(head_.size(), -1);                          // start of each worker's current action
    double now = 0, worked = 0;
    for (size_t w = 0; w < head_.size(); ++w) queue_.push_back(w);
    for (;;) {
      for (; !queue_.empty(); queue_.pop_front()) {
        const size_t w = queue_.front();
        queued_[w] = false;
        int64_t ready = 0;
        if (start_ns[w] >= 0 || !isNextReady(w, ready)) continue;
        start_ns[w] = ready;
        starts.emplace(static_cast<double>(ready), w);
      }
      const double rate =
          costs_.cores > 0 ? std::min(1.0, costs_.cores / std::max(1.0, static_cast<double>(ends.size()))) : 1;
      double next = -1;
      if (!ends.empty()) next = now + (ends.top().first - worked) / rate;
      if (!starts.empty() && (next < 0 || starts.top().first < next)) next = std::max(now, starts.top().first);
      if (next < 0) return;
      worked += (next - now) * rate;
      now = next;
      for (; !ends.empty() && ends.top().first - worked <= 0.5; ends.pop()) {
        const size_t w = ends.top().second;
        const Action& a = schedule_.workers[w][head_[w]];
        const int64_t end = std::max<int64_t>(start_ns[w], std::llround(now));
        result_.workers[w].busy_ns += end - start_ns[w];
        complete(w, std::exchange(start_ns[w], -1), end);
        wake(w);
        wakeAfter(a);
        for (size_t i : sent_[indexOf({a.stage, a.direction})]) wakeStage(transfers_[i].to.stage);
      }
      for (; !starts.empty() && starts.top().first <= now + 0.5; starts.pop()) {
        const size_t w = starts.top().second;
        start_ns[w] = std::max<int64_t>(start_ns[w], std::llround(now));
        ends.emplace(worked + static_cast<double>(timeOf(costs_, schedule_.workers[w][head_[w]])), w);
      }
    }
  }

  // Finds the stages that may wait for frames which tasks of other stages give back.
  void noteReaders() {
    for (const Ring& ring : rings_)
      for (const Task& user : ring.users)
        if (workerOf(user.stage) != workerOf(ring.stage))
          readers_[static_cast<size_t>(user.stage)].push_back(ring.stage);
  }

  void wakeAfter(const Action& a) {
    if (barrierOf(a).left == 0)
      for (size_t other = 0; other < head_.size(); ++other) wake(other);
    if (a.direction == Direction::kForward) wakeStage(a.stage + 1);
    if (a.direction == Direction::kBackward) wakeStage(a.stage - 1);
    if (readers_.empty()) return;
    for (int64_t stage : readers_[static_cast<size_t>(a.stage)]) wakeStage(stage);
  }

  void wakeStage(int64_t stage) {
    if (stage >= 0 && stage < num_stages_ && workerOf(stage) >= 0) wake(static_cast<size_t>(workerOf(stage)));
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
    if (!costs_.memory.empty()) result_.workers[w].peak_bytes = reservedBytes(w);
  }

  int64_t reservedBytes(size_t w) const {
    int64_t bytes = 0, transient = 0;
    for (size_t s = 0; s < costs_.memory.size(); ++s) {
      if (worker_of_[s] != static_cast<int>(w)) continue;
      bytes += costs_.memory[s].persistent_bytes;
      transient = std::max(transient, transientBytes(costs_.memory[s], result_.is_apart[s]));
    }
    for (const Ring& ring : rings_)
      if (workerOf(ring.stage) == static_cast<int>(w)) bytes += ring.frames * ring.bytes;
    return bytes + transient;
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

  // A transfer between two tasks that the schedule runs.
  struct Moving {
    Task from, to;
    size_t index = 0;               // into CostModel::transfers
    std::vector<int64_t> arrivals;  // by micro-batch; -1: not sent yet
  };

  const Schedule& schedule_;
  int num_stages_;
  int64_t accumulation_;
  const CostModel& costs_;
  std::vector<int> worker_of_;
  std::vector<size_t> head_;
  std::vector<bool> queued_;
  std::deque<size_t> queue_;
  std::vector<std::array<std::vector<int64_t>, 4>> ends_;  // by stage, direction and micro-batch; empty: never runs
  std::vector<Barrier> work_, updates_;                    // by group
  std::vector<Ring> rings_;                                // empty without memory
  std::vector<std::vector<size_t>> taken_by_;              // by stage and direction: rings that it takes a frame of
  std::vector<std::vector<int64_t>> readers_;              // by stage: stages on other workers whose frames it uses
  std::vector<Moving> transfers_;
  std::vector<std::vector<size_t>> sent_, awaited_;  // by stage and direction: indices in transfers_
  std::vector<int64_t> link_free_;                   // by link: the time when it becomes free
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
  ABELE_CHECK(costs.reduce_ns.empty() || static_cast<int>(costs.reduce_ns.size()) == num_stages, costs.reduce_ns.size(),
              " sums for ", num_stages, " stages");
  return Simulator(schedule, num_stages, accumulation, costs).run();
}

// The values that a stage keeps live from the start of the task that makes them to the end of the stage's last task
// that uses them. If other stages use them, they live to the end of the stage's last action of the same micro-batch.
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
    transient = std::max(transient, transientBytes(costs.memory[s], simulation.is_apart[s]));
  }
  points.front().bytes = constant + transient;
  auto change = [&](int64_t time_ns, int64_t bytes) {
    if (points.back().time_ns != time_ns) points.push_back({time_ns, points.back().bytes});
    points.back().bytes += bytes;
  };
  // A worker's actions follow one another, so their starts and ends are in the order of time already.
  for (const TimedAction& t : actions) {
    if (t.start_ns < 0) break;
    const size_t s = static_cast<size_t>(t.action.stage);
    const Direction last = splits[s] ? Direction::kWeightGrad : trains[s] ? Direction::kBackward : Direction::kForward;
    const auto use = [&](int64_t bytes, const std::vector<Task>& users) {
      Direction from = users.empty() ? Direction::kForward : last, to = users.empty() ? last : Direction::kForward;
      bool others_use = false;
      for (const Task& user : users) {
        if (user.stage != t.action.stage) {
          others_use = true;
          continue;
        }
        from = std::min(from, user.direction);
        to = std::max(to, std::min(user.direction, last));
      }
      if (t.action.direction == from) change(t.start_ns, bytes);
      if (t.action.direction == (others_use ? last : to)) change(t.end_ns, -bytes);
    };
    if (!simulation.is_apart[s])
      use(costs.memory[s].stash_bytes, costs.memory[s].users);
    else
      for (const StageRing& ring : costs.memory[s].rings) use(ring.bytes, ring.users);
  }
  return points;
}

}  // namespace abele::schedule

#include "schedule/timetable.h"

#include <algorithm>
#include <tuple>

#include "base/cat.h"

namespace abele::schedule {
namespace {

using ir::Direction;

// The actions that have run by the current slot. Finish slots are kept by (direction, stage, micro-batch).
class Progress {
 public:
  Progress(const std::vector<Queue>& queues, int num_stages, int64_t micro_batches, int64_t accumulation)
      : num_stages_(num_stages),
        micro_batches_(micro_batches),
        accumulation_(accumulation),
        finish_(static_cast<size_t>(4 * num_stages * micro_batches), -1) {
    const int64_t groups = micro_batches / accumulation + 1;
    work_left_.resize(static_cast<size_t>(groups), 0);
    updates_left_.resize(static_cast<size_t>(groups), 0);
    for (const Queue& queue : queues)
      for (const Action& a : queue.actions) left(a)++;
  }

  bool isReady(const Action& a, int64_t now) const {
    const size_t group = static_cast<size_t>(a.micro_batch / accumulation_);
    switch (a.direction) {
      case Direction::kForward:
        // Updates of the group before are a barrier: all of them must have run in earlier slots.
        return (group == 0 || (updates_left_[group - 1] == 0 && barrier_slot_ < now)) &&
               (a.stage == 0 || isDone(Direction::kForward, a.stage - 1, a.micro_batch, now));
      case Direction::kBackward:
        return isDone(Direction::kForward, a.stage, a.micro_batch, now) &&
               (a.stage == num_stages_ - 1 || isDone(Direction::kBackward, a.stage + 1, a.micro_batch, now));
      case Direction::kWeightGrad: return isDone(Direction::kBackward, a.stage, a.micro_batch, now);
      case Direction::kUpdate: return work_left_[group] == 0 && work_slot_ < now;
    }
    return false;
  }

  void run(const Action& a, int64_t now) {
    finish_[index(a.direction, a.stage, a.micro_batch)] = now;
    left(a)--;
    (a.direction == Direction::kUpdate ? barrier_slot_ : work_slot_) = now;
  }

 private:
  size_t index(Direction d, int64_t stage, int64_t micro_batch) const {
    return static_cast<size_t>((static_cast<int64_t>(d) * num_stages_ + stage) * micro_batches_ + micro_batch);
  }
  bool isDone(Direction d, int64_t stage, int64_t micro_batch, int64_t now) const {
    const int64_t slot = finish_[index(d, stage, micro_batch)];
    return slot >= 0 && slot < now;
  }
  int64_t& left(const Action& a) {
    const size_t group = static_cast<size_t>(a.micro_batch / accumulation_);
    return a.direction == Direction::kUpdate ? updates_left_[group] : work_left_[group];
  }

  int64_t num_stages_, micro_batches_, accumulation_;
  std::vector<int64_t> finish_;
  std::vector<int64_t> work_left_, updates_left_;  // by group
  int64_t work_slot_ = -1, barrier_slot_ = -1;     // the last slot in which some work ran, and in which an update ran
};

// For comparison: the smaller runs first.
auto urgency(const Action& a) {
  return std::tuple(a.direction != Direction::kUpdate, a.direction == Direction::kForward, a.micro_batch, -a.stage);
}

}  // namespace

Timetable runUnitTime(const std::vector<Queue>& queues, int num_stages, int64_t micro_batches, int64_t accumulation) {
  Timetable table;
  int num_workers = 0;
  int64_t remaining = 0;
  for (const Queue& q : queues) {
    table.start.emplace_back(q.actions.size(), -1);
    num_workers = std::max(num_workers, q.worker + 1);
    remaining += static_cast<int64_t>(q.actions.size());
  }
  Progress progress(queues, num_stages, micro_batches, accumulation);
  std::vector<size_t> head(queues.size(), 0);
  std::vector<int> chosen(static_cast<size_t>(num_workers));
  while (remaining > 0) {
    std::fill(chosen.begin(), chosen.end(), -1);
    for (size_t q = 0; q < queues.size(); ++q) {
      if (head[q] == queues[q].actions.size()) continue;
      const Action& a = queues[q].actions[head[q]];
      if (!progress.isReady(a, table.slots)) continue;
      int& best = chosen[static_cast<size_t>(queues[q].worker)];
      if (best < 0 || urgency(a) < urgency(queues[best].actions[head[best]])) best = static_cast<int>(q);
    }
    bool moved = false;
    for (int q : chosen) {
      if (q < 0) continue;
      moved = true;
      table.start[q][head[q]] = table.slots;
      progress.run(queues[q].actions[head[q]++], table.slots);
      --remaining;
    }
    if (!moved) {
      table.complete = false;
      return table;
    }
    ++table.slots;
  }
  return table;
}

Timetable runUnitTime(const Schedule& schedule, int num_stages, int64_t accumulation) {
  std::vector<Queue> queues;
  for (size_t w = 0; w < schedule.workers.size(); ++w) queues.push_back({static_cast<int>(w), schedule.workers[w]});
  return runUnitTime(queues, num_stages, schedule.micro_batches, accumulation);
}

std::string actionText(const Action& action, bool with_stage) {
  static constexpr char kLetter[] = {'F', 'B', 'W', 'U'};
  std::string text(1, kLetter[static_cast<int>(action.direction)]);
  if (with_stage) text += cat(action.stage, ".");
  return text + cat(action.micro_batch);
}

}  // namespace abele::schedule

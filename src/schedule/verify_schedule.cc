#include <algorithm>

#include "base/cat.h"
#include "schedule/schedule.h"
#include "schedule/timetable.h"

namespace abele::schedule {
namespace {

using ir::Direction;

// The place of an action: worker and position; worker -1 means that it does not exist.
struct Position {
  int worker = -1;
  int64_t index = -1;
};

class Verifier {
 public:
  Verifier(const Schedule& schedule, int num_stages, int64_t accumulation, bool training)
      : schedule_(schedule),
        num_stages_(num_stages),
        accumulation_(accumulation),
        training_(training),
        positions_(static_cast<size_t>(4 * num_stages * schedule.micro_batches)) {}

  std::vector<std::string> run() {
    if (accumulation_ < 1 || schedule_.micro_batches % std::max<int64_t>(accumulation_, 1) != 0) {
      report(schedule_.micro_batches, " micro-batches do not divide into groups of ", accumulation_);
      return findings_;
    }
    collect();
    for (int s = 0; s < num_stages_; ++s) checkStage(s);
    if (findings_.empty() && !runUnitTime(schedule_, num_stages_, accumulation_).complete)
      report("deadlock: some actions never become ready");
    return findings_;
  }

 private:
  template <class... Parts>
  void report(const Parts&... parts) {
    findings_.push_back(cat(parts...));
  }

  Position& at(int stage, Direction d, int64_t k) {
    return positions_[static_cast<size_t>((static_cast<int64_t>(d) * num_stages_ + stage) * schedule_.micro_batches +
                                          k)];
  }

  void collect() {
    std::vector<int> worker_of(static_cast<size_t>(num_stages_), -1);
    for (size_t w = 0; w < schedule_.workers.size(); ++w) {
      int64_t index = 0;
      for (const Action& a : schedule_.workers[w]) {
        const std::string text = actionText(a, /*with_stage=*/true);
        if (a.stage < 0 || a.stage >= num_stages_ || a.micro_batch < 0 || a.micro_batch >= schedule_.micro_batches) {
          report("worker ", w, ": ", text, " is outside the schedule");
          continue;
        }
        if (!training_ && a.direction != Direction::kForward) report("worker ", w, ": ", text, " in inference");
        int& owner = worker_of[static_cast<size_t>(a.stage)];
        if (owner < 0) owner = static_cast<int>(w);
        if (owner != static_cast<int>(w)) report("stage ", a.stage, " runs on workers ", owner, " and ", w);
        Position& position = at(a.stage, a.direction, a.micro_batch);
        if (position.worker >= 0) report("worker ", w, ": ", text, " runs twice");
        position = {static_cast<int>(w), index++};
      }
    }
  }

  // Compares only actions on one worker; collect() has reported a stage on several workers.
  void requireOrder(const Action& first, const Action& second) {
    const Position a = at(first.stage, first.direction, first.micro_batch);
    const Position b = at(second.stage, second.direction, second.micro_batch);
    if (a.worker >= 0 && a.worker == b.worker && a.index > b.index)
      report("worker ", a.worker, ": ", actionText(second, true), " before ", actionText(first, true));
  }

  void checkStage(int s) {
    bool has_weight_grad = false, has_update = false;
    for (int64_t k = 0; k < schedule_.micro_batches; ++k) {
      has_weight_grad |= at(s, Direction::kWeightGrad, k).worker >= 0;
      has_update |= at(s, Direction::kUpdate, k).worker >= 0;
    }
    for (int64_t k = 0; k < schedule_.micro_batches; ++k) {
      const int32_t micro_batch = static_cast<int32_t>(k);
      const Action f{s, Direction::kForward, micro_batch}, b{s, Direction::kBackward, micro_batch},
          w{s, Direction::kWeightGrad, micro_batch};
      requirePresence(f, true);
      requirePresence(b, training_);
      requirePresence(w, has_weight_grad);
      const bool group_end = (k + 1) % accumulation_ == 0;
      const Action u{s, Direction::kUpdate, micro_batch};
      requirePresence(u, has_update && group_end);
      requireOrder(f, b);
      requireOrder(b, w);
      // Sums and running statistics follow the order of the micro-batches.
      for (const Action& a : {f, b, w})
        if (k > 0) requireOrder({a.stage, a.direction, micro_batch - 1}, a);
      const int64_t end = k / accumulation_ * accumulation_ + accumulation_ - 1;
      const Action update{s, Direction::kUpdate, static_cast<int32_t>(end)};
      requireOrder(b, update);
      requireOrder(w, update);
      if (group_end && k + 1 < schedule_.micro_batches)
        for (int64_t next = k + 1; next <= k + accumulation_; ++next)
          requireOrder(u, {s, Direction::kForward, static_cast<int32_t>(next)});
    }
  }

  void requirePresence(const Action& a, bool wanted) {
    const bool present = at(a.stage, a.direction, a.micro_batch).worker >= 0;
    if (wanted && !present) report(actionText(a, true), " is missing");
    if (!wanted && present) report(actionText(a, true), " does not belong here");
  }

  const Schedule& schedule_;
  int num_stages_;
  int64_t accumulation_;
  bool training_;
  std::vector<Position> positions_;
  std::vector<std::string> findings_;
};

}  // namespace

std::vector<std::string> verifySchedule(const Schedule& schedule, int num_stages, int64_t accumulation, bool training) {
  return Verifier(schedule, num_stages, accumulation, training).run();
}

std::string printSchedule(const Schedule& schedule) {
  int num_stages = 0;
  int64_t accumulation = schedule.micro_batches;
  bool has_update = false;
  for (const auto& actions : schedule.workers)
    for (const Action& a : actions) {
      num_stages = std::max(num_stages, a.stage + 1);
      // The first update closes the first group, so it gives the size of all groups.
      if (a.direction == Direction::kUpdate && (!has_update || a.micro_batch + 1 < accumulation)) {
        accumulation = a.micro_batch + 1;
        has_update = true;
      }
    }
  const Timetable table = runUnitTime(schedule, num_stages, std::max<int64_t>(accumulation, 1));
  std::string out;
  for (size_t w = 0; w < schedule.workers.size(); ++w) {
    const auto& actions = schedule.workers[w];
    const bool with_stage =
        std::any_of(actions.begin(), actions.end(), [&](const Action& a) { return a.stage != actions.front().stage; });
    out += cat("worker ", w, ":");
    int64_t slot = 0;
    for (size_t i = 0; i < actions.size(); ++i) {
      for (; slot < table.start[w][i]; ++slot) out += " .";
      out += " " + actionText(actions[i], with_stage);
      if (table.start[w][i] < 0) out += "?";  // never becomes ready
      slot = std::max(slot, table.start[w][i] + 1);
    }
    out += '\n';
  }
  return out;
}

}  // namespace abele::schedule

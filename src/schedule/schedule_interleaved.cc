// Several stages a worker, dealt round like cards. A micro-batch passes every worker once per chunk. So the pipeline
// fills and drains in steps of a chunk instead of a whole worker's share.
#include <algorithm>

#include "schedule/schedule_parts.h"

namespace abele::schedule {
namespace {

using ir::Direction;

// A turn is a range [first, end) of the micro-batches of a group, which visits all chunks before the next turn begins.
// It has at least one micro-batch for each worker; otherwise a chunk would wait for the first micro-batch to come
// round. Longer turns come first; otherwise a worker's backward would wait for a forward that comes later in its own
// order.
struct Turn {
  int64_t first = 0, end = 0;
};

std::vector<Turn> makeTurns(int64_t accumulation, int64_t num_workers) {
  const int64_t count = std::max<int64_t>(1, accumulation / num_workers);
  std::vector<Turn> turns;
  int64_t first = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t size = accumulation / count + (i < accumulation % count);
    turns.push_back({first, first + size});
    first += size;
  }
  return turns;
}

bool isDealtRound(const std::vector<int>& worker_of, int num_workers) {
  for (size_t s = 0; s < worker_of.size(); ++s)
    if (worker_of[s] != static_cast<int>(s) % num_workers) return false;
  return worker_of.size() % static_cast<size_t>(num_workers) == 0;
}

}  // namespace

// For v stages a worker, dealt round (stage s on worker s % workers). Micro-batches visit the chunks in turns of about
// one micro-batch a worker, which divides the bubble by v. Other placements get 1F1B. Source: Narayanan et al. 2021,
// 2.2.
Schedule scheduleInterleaved(const ScheduleRequest& request) {
  checkCounts(request);
  const std::vector<int>& worker_of = request.worker_of;
  const int num_stages = request.numStages();
  const int64_t accumulation = request.accumulation;
  const int num_workers = request.numWorkers();
  const int chunks = num_stages / num_workers;
  if (chunks < 2 || !isDealtRound(worker_of, num_workers)) return schedule1F1B(request);
  const std::vector<Turn> turns = makeTurns(accumulation, num_workers);
  Schedule group;
  group.micro_batches = accumulation;
  for (int w = 0; w < num_workers; ++w) {
    std::vector<Action> forward, backward;
    for (const Turn& turn : turns)
      for (int c = 0; c < chunks; ++c)
        for (int64_t k = turn.first; k < turn.end; ++k) {
          forward.push_back(act(c * num_workers + w, Direction::kForward, k));
          backward.push_back(act((chunks - 1 - c) * num_workers + w, Direction::kBackward, k));
        }
    // The forwards until the first backward comes back: the turn through all chunks but the last, and the way to the
    // end and back.
    const int64_t total = static_cast<int64_t>(forward.size());
    const int64_t warm_up = std::min(total, (chunks - 1) * turns.front().end + 2 * (num_workers - 1 - w));
    std::vector<Action>& actions = group.workers.emplace_back(forward.begin(), forward.begin() + warm_up);
    for (int64_t i = 0; i < total; ++i) {
      if (warm_up + i < total) actions.push_back(forward[static_cast<size_t>(warm_up + i)]);
      actions.push_back(backward[static_cast<size_t>(i)]);
    }
    for (int c = 0; c < chunks; ++c) actions.push_back(act(c * num_workers + w, Direction::kUpdate, accumulation - 1));
  }
  return repeatGroup(group, request.device_iterations);
}

}  // namespace abele::schedule

// Where to cut a program so that its predicted step is shortest. Docs: docs/placement.md. Driven by compile/ and
// tools/abele-sim.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/predict.h"
#include "plan/split_chain.h"

namespace abele::plan {

struct SplitOptions {
  ScheduleKind schedule = ScheduleKind::k1F1B;
  /// Try all schedules that train, and take the fastest; `schedule` does not matter then.
  bool any_schedule = false;
  int devices = 1;
  int64_t device_iterations = 1;
  int64_t accumulation = 1;
  int64_t hop_ns = 0;
  int64_t device_bytes = 0;  // 0: no limit
  Machine machine = {};      // whose links the cuts hand over on; without links: one memory
  Replication replication = {};
  bool recompute = false;  // backward makes forward again, but for a last stage whose backward follows at once
};

struct Split {
  ScheduleKind schedule = ScheduleKind::k1F1B;
  std::vector<size_t> cuts;          // pieces that begin the second and every later stage
  std::vector<ir::NodeId> node_ids;  // the same for passes::StageRules::cuts
  Chain chain;                       // costs and devices of the stages
  Prediction prediction;
  int64_t crossing_bytes = 0;  // over all cuts
  int64_t bytes_over = 0;      // above the limit, over all devices
};

/// The costs of the stages between these cuts, run by options.schedule.
Split splitAt(const SplitChain& chain, const SplitOptions& options, std::vector<size_t> cuts);

/// The cuts with the least bytes above the limit, then the shortest predicted step, then the fewest bytes to hand over.
/// Few cuts are all tried; of many, those that balance the stages best are improved step by step. Deterministic.
/// Returns: the best first, then the next best that were looked at, at most `alternatives` of them.
/// Under a schedule that deals stages round a device gets two stages if there are pieces enough. Throws E0406 when a
/// device would get none.
std::vector<Split> autoSplit(const SplitChain& chain, const SplitOptions& options, size_t alternatives = 0);

/// The schedules that a program can train with: those that `any_schedule` chooses from.
std::vector<ScheduleKind> trainingSchedules();

}  // namespace abele::plan

// Finds the cuts of a program that make its predicted step shortest. Docs: docs/placement.md. Called by compile/ and
// tools/abele-sim.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/predict.h"
#include "split/split_chain.h"

namespace abele::split {

struct SplitOptions {
  schedule::ScheduleKind schedule = schedule::ScheduleKind::k1F1B;
  /// Try all training schedules and take the fastest; ignores `schedule`.
  bool any_schedule = false;
  int devices = 1;
  int64_t device_iterations = 1;
  int64_t accumulation = 1;
  int64_t hop_ns = 0;
  int64_t device_bytes = 0;        // 0: no limit
  schedule::Machine machine = {};  // values cross cuts on its links; without links, all devices share one memory
  schedule::Replication replication = {};
  bool recompute = false;  // backward computes forward again, except if it follows its forward at once
};

struct Split {
  schedule::ScheduleKind schedule = schedule::ScheduleKind::k1F1B;
  std::vector<size_t> cuts;          // positions of the pieces that begin the second and every later stage
  std::vector<ir::NodeId> node_ids;  // the same cuts as ids, for passes::StageRules::cuts
  plan::Chain chain;                 // costs and devices of the stages
  plan::Prediction prediction;
  int64_t crossing_bytes = 0;  // sum over all cuts
  int64_t bytes_over = 0;      // bytes above the limit, over all devices
};

/// Evaluates these cuts under options.schedule.
Split splitAt(const SplitChain& chain, const SplitOptions& options, std::vector<size_t> cuts);

/// Finds the cuts with the fewest bytes above the limit; among these the shortest predicted step; among these the
/// fewest bytes across cuts. Tries all cuts if there are few. Otherwise starts from those that balance the stages best
/// and improves them step by step. Deterministic.
/// Returns: the best split, then the next best that were evaluated, at most `alternatives` of them. A schedule with
/// ScheduleTrait::kDealtRound gets two stages a device if there are enough pieces. Throws E0406 if a device would get
/// no piece.
std::vector<Split> autoSplit(const SplitChain& chain, const SplitOptions& options, size_t alternatives = 0);

/// The schedules that a program can train with; `any_schedule` chooses among them.
std::vector<schedule::ScheduleKind> trainingSchedules();

}  // namespace abele::split

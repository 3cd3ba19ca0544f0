// Decisions of the compiler if the user leaves them open: where stages begin (AutoSplit), and which schedule runs them
// (schedule "auto" or no schedule). Used by compiler.cc, measured_placement.cc and session/explain.cc.
#pragma once

#include <vector>

#include "capture/capture.h"
#include "compile/lowering.h"
#include "compile/program_options.h"
#include "split/auto_split.h"
#include "split/default_schedule.h"

namespace abele::compile {

/// Returns true if the options choose AutoSplit or the schedule "auto".
bool splitsByItself(const ProgramOptions& options);
bool choosesSchedule(const ProgramOptions& options);

/// The number of devices that AutoSplit cuts for: the user's number, or one per core of a replica.
int splitDevices(const ProgramOptions& options);

/// Memories and links from the strategy's costs; a single memory if the costs have none.
schedule::Machine machineOf(const ProgramOptions& options);

/// The graph lowered as one stage and cut into pieces for this number of devices.
struct Pieces {
  ir::Graph graph;
  split::SplitChain chain;
};
/// graph: captured, with the outputs and anchors of the session.
Pieces piecesOf(const ir::Graph& graph, const ProgramOptions& options, const OptimizerSpec& optimizer, int devices);
split::SplitOptions splitOptions(const ProgramOptions& options, int devices);

/// Sets the stages and devices of the split in the options, and the schedule for ScheduleRule::kFastest. Throws E0406.
void placeBySplit(const ir::Graph& graph, const OptimizerSpec& optimizer, ProgramOptions& options);

/// A schedule and its predicted time.
struct ScheduleChoice {
  schedule::ScheduleKind schedule = schedule::ScheduleKind::k1F1B;
  int64_t step_ns = 0, peak_bytes = 0;
  bool fits = true;  // every device is within its memory limit
};
/// All schedules that can train the placed program: the fastest first, those over the memory limit last. graph:
/// lowered.
std::vector<ScheduleChoice> compareSchedules(const ir::Graph& graph, const ProgramOptions& options);

/// Returns true for a training pipeline if the user named no schedule.
bool leavesSchedule(const ProgramOptions& options);

/// A lowered program and the schedule that was chosen for it.
struct Lowered {
  ir::Graph graph;
  split::DefaultSchedule choice;
};
/// Requires: leavesSchedule(options). The caller sets options.schedule to the choice.
Lowered lowerByDefault(const Captured& captured, ProgramOptions options);

}  // namespace abele::compile

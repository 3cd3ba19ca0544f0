// The schedule of training programs whose owner chose none. Used by session.cc.
#pragma once

#include "compile/lowering.h"
#include "plan/default_schedule.h"

namespace abele::host {

/// A pipeline in training, and nobody named a schedule.
bool leavesSchedule(const ProgramOptions& options);

/// A lowered program under the schedule that was chosen for it.
struct Lowered {
  ir::Graph graph;
  plan::DefaultSchedule choice;
};
/// Requires: leavesSchedule(options). The caller sets options.schedule to the choice.
Lowered lowerByDefault(const Captured& captured, ProgramOptions options);

}  // namespace abele::host

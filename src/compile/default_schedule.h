// Chooses the schedule of training programs if the user chose none. Used by compiler.cc.
#pragma once

#include "compile/lowering.h"
#include "split/default_schedule.h"

namespace abele::compile {

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

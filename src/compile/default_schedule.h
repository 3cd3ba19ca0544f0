// The schedule of training programs for which the user chose none. Used by compiler.cc.
#pragma once

#include "compile/lowering.h"
#include "plan/default_schedule.h"

namespace abele::host {

/// Is it a training pipeline for which the user named no schedule?
bool leavesSchedule(const ProgramOptions& options);

/// A lowered program under the schedule that was chosen for it.
struct Lowered {
  ir::Graph graph;
  plan::DefaultSchedule choice;
};
/// Requires: leavesSchedule(options). The caller sets options.schedule to the choice.
Lowered lowerByDefault(const Captured& captured, ProgramOptions options);

}  // namespace abele::host

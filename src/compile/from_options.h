// From the values of abele::Options to the options of a program.
#pragma once

#include "abele/options.h"
#include "compile/program_options.h"
#include "options/store.h"

namespace abele::host {

/// training also resolves OutputMode::kDefault. Throws E0701, E0702 for values that contradict each other or that would
/// change what a model does, and for environment variables with a value that is not allowed.
ProgramOptions programOptions(const Options::Values& values, bool training);
/// E0702 for a number that is no Schedule, or that names none.
plan::ScheduleKind kindOf(Schedule schedule);
CommGroup commGroup(CommGroupType type);
/// How many of the processes are on this host, as the launcher says; all of them where it does not.
int64_t localProcesses(int64_t processes);
/// Does a variable ask for the modelled device?
bool simulatorIsChosen();
/// Do the options, or else a variable?
bool usesModel(const Options::Values& values);

}  // namespace abele::host

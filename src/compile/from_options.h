// From the values of abele::Options to the options of a program.
#pragma once

#include "abele/options.h"
#include "compile/program_options.h"
#include "options/store.h"

namespace abele::compile {

/// training also resolves OutputMode::kDefault. Throws E0701, E0702 for values that contradict each other or would
/// change the behaviour of a model, and for environment variables with a value that is not allowed.
ProgramOptions programOptions(const Options::Values& values, bool training);
/// Throws E0702 for a number outside of the enumeration, and for a Schedule that does not name a single schedule.
schedule::ScheduleKind kindOf(Schedule schedule);
CommGroup commGroup(CommGroupType type);
/// Number of processes on this host, from the launcher's variables. All processes if no variable has the number.
int64_t localProcesses(int64_t processes);
/// Returns true if an environment variable selects the modelled device.
bool simulatorIsChosen();
/// Returns true if the options select the modelled device, or if a variable does and the options leave it open.
bool usesModel(const Options::Values& values);

}  // namespace abele::compile

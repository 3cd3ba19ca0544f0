// The text table of a model's last step, what its memory is for, and how it is simulated, as the public API says it.
#pragma once

#include <string>

#include "abele/model.h"
#include "abele/simulate.h"
#include "session/session.h"

namespace abele::report {

// report.cc
MemoryReport publicMemory(const plan::MemoryReport& report, const compile::ProgramOptions& options);
std::string reportText(const session::SessionReport& report);
/// The options to simulate a session's program with its own schedule, counts and limits.
SimulationOptions simulationOf(const session::Session& session);

}  // namespace abele::report

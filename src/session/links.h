// The links between the memories of a program's devices, measured where nobody described them. Docs: docs/simulator.md,
// "Machines".
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "compile/program_options.h"

namespace abele::runtime {
class Peers;
}

namespace abele::host {

/// ProgramOptions::costs, or a machine alone where the user gave none and devices of a replica share no memory: its
/// links as they were measured, the same in all processes. Measured once for each layout of devices, by all processes
/// together; kept for as long as the process lives, and in a file beside the executables, so that the cache's keys
/// stay. What rounding at random gives depends on the schedule: such programs have no measured links. peers: null for a
/// process alone. poll: as in Session. Throws E0713 where the processes do other things, E0606, E0602.
std::string costsWithLinks(const ProgramOptions& options, const std::shared_ptr<runtime::Peers>& peers,
                           const std::function<bool()>& poll = {});

}  // namespace abele::host

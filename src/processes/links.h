// The links between the memories of a program's devices, measured unless the user described them. Docs:
// docs/simulator.md, "Machines".
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "compile/program_options.h"

namespace abele::collective {
class Peers;
}

namespace abele::processes {

/// Returns ProgramOptions::costs. If the user gave none and devices of a replica share no memory, returns only a
/// machine: its measured links, the same in all processes. All processes together measure them once per layout of
/// devices. They keep the result for the life of the process, and in a file beside the executables, so that the cache's
/// keys do not change. The results of stochastic rounding depend on the schedule, so such programs have no measured
/// links. peers: null for a single process. poll: as in Session. Throws E0713 if the processes do different things,
/// E0606, E0602.
std::string costsWithLinks(const compile::ProgramOptions& options, const std::shared_ptr<collective::Peers>& peers,
                           const std::function<bool()>& poll = {});

}  // namespace abele::processes

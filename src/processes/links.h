// The links between the memories of a program's devices, unless the user described them. Docs: docs/simulator.md, "The
// machine file".
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "compile/program_options.h"

namespace abele::collective {
class Peers;
}

namespace abele::processes {

/// Returns ProgramOptions::costs if the user gave costs. Otherwise, if devices of a replica share no memory, returns a
/// machine alone: links with the times of the machine file, or default times. All processes get those of the first one.
/// Programs with stochastic rounding get no links, because their results depend on the schedule. peers: null for a
/// single process. poll: as in Session. Throws E0404, E0712, E0606, E0602.
std::string costsWithLinks(const compile::ProgramOptions& options, const std::shared_ptr<collective::Peers>& peers,
                           const std::function<bool()>& poll = {});

/// Measures links between the accelerators of this process, and from each process to the next one, and writes the
/// machine file. The file gets the slowest link of each kind. All processes call it. peers: as above. Throws E0702 if
/// this process has no links, E0712, E0606.
void measureLinks(const compile::ProgramOptions& options, const std::shared_ptr<collective::Peers>& peers);

/// The links of the machine file, in a line for people. Throws E0404, E0712.
std::string machineFileText();

}  // namespace abele::processes

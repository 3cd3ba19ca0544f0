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

/// Returns ProgramOptions::costs. If the user gave none and devices of a replica share no memory, returns only a
/// machine: links with the times of the machine file, or default times. All processes get those of the first one. The
/// results of stochastic rounding depend on the schedule, so such programs have no links. peers: null for a single
/// process. poll: as in Session. Throws E0404, E0712, E0606, E0602.
std::string costsWithLinks(const compile::ProgramOptions& options, const std::shared_ptr<collective::Peers>& peers,
                           const std::function<bool()>& poll = {});

/// Measures links between the accelerators of this process, and from each process to the next one, and writes the
/// machine file. The slowest link of each kind counts. All processes call it. peers: as above. Throws E0702 if this
/// process has no links, E0712, E0606.
void measureLinks(const compile::ProgramOptions& options, const std::shared_ptr<collective::Peers>& peers);

/// The links of the machine file, in a line for people. Throws E0404, E0712.
std::string machineFileText();

}  // namespace abele::processes

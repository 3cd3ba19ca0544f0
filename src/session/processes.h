// Several processes that train one model, each with replicas of its own. Docs: docs/replicas.md.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "compile/program_options.h"

namespace abele::runtime {
class Peers;
}

namespace abele::host {

/// The other processes, for training; null where there are none. Throws E0714, E0606.
std::shared_ptr<runtime::Peers> joinPeers(const ProgramOptions& options);
/// Throws E0713 in all processes where one has another program. key: of cacheKey(). Requires: all processes call it.
/// poll: as in Session; a wait that it ends (E0602) ends the group.
void requireSameProgram(runtime::Peers& peers, const std::string& key, const std::function<bool()>& poll = {});

/// Takes the registered process group into this process's sessions, which alone hold it then. Throws as joinPeers.
void joinProcesses(const ProcessOptions& processes);
/// Before this process ends: the others need not wait for it any more. Later steps of several processes throw E0606.
void leaveProcesses();

}  // namespace abele::host

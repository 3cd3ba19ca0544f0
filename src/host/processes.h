// Several processes that train one model, each with replicas of its own. Docs: docs/replicas.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace abele::runtime {
class Peers;
}

namespace abele::host {

struct SessionOptions;

/// Which of how many processes this is.
struct ProcessOptions {
  int64_t index = 0;
  int64_t count = 1;
  int64_t on_host = 1;          // of them; they share its cores
  std::string group = "abele";  // name of their process group in c10d's registry
};

/// Replicas of all processes.
int64_t totalReplicas(const SessionOptions& options);
/// E0702 for numbers that do not fit, E0711 for options that several processes do not have.
void checkProcesses(const SessionOptions& options);
/// The other processes, for training; null where there are none. Throws E0714, E0606.
std::shared_ptr<runtime::Peers> joinPeers(const SessionOptions& options);
/// Throws E0713 in all processes where one has another program. key: of cacheKey(). Requires: all processes call it.
/// poll: as in Session; a wait that it ends (E0602) ends the group.
void requireSameProgram(runtime::Peers& peers, const std::string& key, const std::function<bool()>& poll = {});

/// Takes the registered process group into this process's sessions, which alone hold it then. Throws as joinPeers.
void joinProcesses(const ProcessOptions& processes);
/// Before this process ends: the others need not wait for it any more. Later steps of several processes throw E0606.
void leaveProcesses();

}  // namespace abele::host

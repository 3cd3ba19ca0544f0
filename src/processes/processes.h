// Several processes that train one model, each with its own replicas. Docs: docs/replicas.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/device_links.h"
#include "compile/program_options.h"

namespace abele::collective {
class Peers;
struct Announcement;
}  // namespace abele::collective

namespace abele::processes {

/// The other processes, for training; null for a single process. Throws E0714, E0606.
std::shared_ptr<collective::Peers> joinPeers(const compile::ProgramOptions& options);
/// Calls `waits`, which waits for the other processes, and meanwhile poll, as in Session. If poll ends the wait
/// (E0602), the group ends too.
void waitForOthers(collective::Peers& peers, const std::function<bool()>& poll, const std::function<void()>& waits);
/// The announcements of this process and all others, by process. Throws the errors of collective::requireSameAct, and
/// E0602 as above.
std::vector<collective::Announcement> exchange(collective::Peers& peers, const collective::Announcement& own,
                                               const std::function<bool()>& poll);
/// The smallest number of cores for a replica among the processes. Schedules and cuts depend on it, and must be the
/// same in all processes. Throws, poll: as below.
int leastCores(collective::Peers& peers, int own, const std::function<bool()>& poll = {});
/// Like compile::machineOfTrials, with the cores that processes agree on when they compile. All processes call it.
std::string machineOfTrials(compile::ProgramOptions options, const std::function<bool()>& poll = {});
/// Whether this is machineOfTrials in all processes. All processes call it.
bool isMachineOfTrials(const std::string& machine, const compile::ProgramOptions& options,
                       const std::function<bool()>& poll = {});
/// Throws E0713 in all processes if one has another program, or gives results to other processes. key: from cacheKey().
/// Requires: all processes call it. poll: as in Session; if it ends the wait (E0602), the group ends too.
void requireSameProgram(collective::Peers& peers, const std::string& key, compile::OutputRank output_rank,
                        const std::function<bool()>& poll = {});

/// The rank and number of processes from the launcher: torchrun, poprun or mpirun. Throws E0702.
compile::ProcessOptions placeOfThisProcess();
/// The same from poprun's own variables. Source: spec environment.md section 9.
struct PopdistPlace {
  bool is_set = false;
  int64_t total_replicas = 1, local_replicas = 1, first_replica = 0, ipus_per_replica = 1;
  int64_t instance = 0, instances = 1;

  /// Returns true if a replica spans several processes.
  bool isSplit() const { return total_replicas % instances != 0; }
  /// The process in a group other than the training's.
  compile::ProcessOptions process() const { return {.index = instance, .count = instances, .group = "popdist"}; }
};
/// Throws E0702.
PopdistPlace popdistPlace();

/// Connects this process with the others, or takes the group that the program registered. From then on only this
/// process's sessions hold the group. make: makes groups of torch.distributed if the program can
/// (collective::setDeviceGroups). Throws the errors of joinPeers.
void joinProcesses(const compile::ProcessOptions& processes, collective::MakeDeviceGroup make = {});
/// Waits until all processes have called this. Throws the errors of joinPeers.
void synchronize(const compile::ProcessOptions& processes);
/// Returns true if `value` is true in any of the processes. Waits until all have called this. Throws the errors of
/// joinPeers.
bool anyOf(const compile::ProcessOptions& processes, bool value);
/// The same for the processes that this one trains with. A process that has not joined others is alone. Throws E0606.
bool anyOfJoined(bool value);
/// Called before this process ends: the others no longer wait for it. Later steps with several processes throw E0606.
void leaveProcesses();

}  // namespace abele::processes

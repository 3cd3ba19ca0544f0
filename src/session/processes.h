// Several processes that train one model, each with replicas of its own. Docs: docs/replicas.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "compile/program_options.h"
#include "runtime/collective/device_links.h"

namespace abele::runtime {
class Peers;
struct Announcement;
}  // namespace abele::runtime

namespace abele::host {

/// The other processes, for training; null where there are none. Throws E0714, E0606.
std::shared_ptr<runtime::Peers> joinPeers(const ProgramOptions& options);
/// Calls `waits`, which waits for the other processes, while poll is asked, as in Session. What it ends (E0602) ends
/// the group.
void waitForOthers(runtime::Peers& peers, const std::function<bool()>& poll, const std::function<void()>& waits);
/// What this process and all others announce, by process. Throws what runtime::requireSameAct throws, and E0602 as
/// above.
std::vector<runtime::Announcement> exchange(runtime::Peers& peers, const runtime::Announcement& own,
                                            const std::function<bool()>& poll);
/// What the process with the fewest cores for a replica has: schedules and cuts are chosen by it, and all processes
/// must choose the same. Throws, and poll, as below.
int leastCores(runtime::Peers& peers, int own, const std::function<bool()>& poll = {});
/// Throws E0713 in all processes where one has another program, or gives results to other processes. key: of
/// cacheKey(). Requires: all processes call it. poll: as in Session; a wait that it ends (E0602) ends the group.
void requireSameProgram(runtime::Peers& peers, const std::string& key, OutputRank output_rank,
                        const std::function<bool()>& poll = {});

/// The place that the launcher gave this process: torchrun, poprun or mpirun. Throws E0702.
ProcessOptions placeOfThisProcess();
/// That of poprun's own variables. Source: spec environment.md section 9.
struct PopdistPlace {
  bool is_set = false;
  int64_t total_replicas = 1, local_replicas = 1, first_replica = 0, ipus_per_replica = 1;
  int64_t instance = 0, instances = 1;

  /// Do replicas lie in several processes?
  bool isSplit() const { return total_replicas % instances != 0; }
  /// In a group that is not the training's.
  ProcessOptions process() const { return {.index = instance, .count = instances, .group = "popdist"}; }
};
/// Throws E0702.
PopdistPlace popdistPlace();

/// Connects this process with the others, or takes the group that the program registered into this process's sessions,
/// which alone hold it then. make: what the program makes groups of torch.distributed with, where it can
/// (runtime::setDeviceGroups). Throws as joinPeers.
void joinProcesses(const ProcessOptions& processes, runtime::MakeDeviceGroup make = {});
/// Waits until all processes are here. Throws as joinPeers.
void synchronize(const ProcessOptions& processes);
/// Is it true in any of them? Waits until all have asked. Throws as joinPeers.
bool anyOf(const ProcessOptions& processes, bool value);
/// The same of those that this process trains with; one that has joined no others is alone. Throws E0606.
bool anyOfJoined(bool value);
/// Before this process ends: the others need not wait for it any more. Later steps of several processes throw E0606.
void leaveProcesses();

}  // namespace abele::host

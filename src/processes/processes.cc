#include "processes/processes.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <utility>

#include "base/environment.h"
#include "base/error.h"
#include "collective/announcement.h"
#include "collective/peers.h"
#include "compile/shard_trials.h"

namespace abele::processes {
namespace {

constexpr auto kPollPeriod = std::chrono::milliseconds(50);

const char* wordOf(uint64_t output_rank) {
  switch (static_cast<compile::OutputRank>(output_rank)) {
    case compile::OutputRank::kAll: return "all";
    case compile::OutputRank::kFirst: return "first";
    case compile::OutputRank::kLast: return "last";
    case compile::OutputRank::kOwner: return "owner";
  }
  return "?";
}

bool anyOf(collective::Peers& peers, bool value) {
  const std::string yes = "y", no = "n";  // texts of an exchange need the same length
  const auto answers = peers.exchange(value ? yes : no);
  return std::ranges::find(answers, yes) != answers.end();
}

}  // namespace

std::shared_ptr<collective::Peers> joinPeers(const compile::ProgramOptions& options) {
  const compile::ProcessOptions& processes = options.processes;
  if (processes.count == 1 || (!options.training && processes.stages == 1)) return {};
  return collective::Peers::join(processes.group, processes.index, processes.count);
}

// Waits on another thread, so that the caller can be interrupted.
void waitForOthers(collective::Peers& peers, const std::function<bool()>& poll, const std::function<void()>& waits) {
  if (!poll) return waits();
  auto done = std::async(std::launch::async, waits);
  bool stops = false;
  std::exception_ptr thrown;
  while (!stops && done.wait_for(kPollPeriod) != std::future_status::ready) {
    try {
      stops = poll();
    } catch (...) {
      thrown = std::current_exception();
      stops = true;
    }
  }
  if (!stops) return done.get();
  peers.interrupt();
  done.wait();
  peers.fail("its compilation was interrupted");
  if (thrown) std::rethrow_exception(thrown);
  throwUser(ErrorCode::E0602, {.what = "waiting for the other processes was interrupted",
                               .remedy = "start all processes again, from the last checkpoint"});
}

std::vector<collective::Announcement> exchange(collective::Peers& peers, const collective::Announcement& own,
                                               const std::function<bool()>& poll) {
  collective::announce(peers, own);
  std::vector<collective::Announcement> all;
  waitForOthers(peers, poll, [&] { all = collective::requireSameAct(peers); });
  return all;
}

int leastCores(collective::Peers& peers, int own, const std::function<bool()>& poll) {
  uint64_t least = static_cast<uint64_t>(own);
  for (const collective::Announcement& other :
       exchange(peers, {.act = "begins to compile a model", .facts = {least}}, poll))
    least = std::min(least, other.facts[0]);
  return static_cast<int>(least);
}

std::string machineOfTrials(compile::ProgramOptions options, const std::function<bool()>& poll) {
  if (const std::shared_ptr<collective::Peers> peers = joinPeers(options))
    options.processes.cores = leastCores(*peers, compile::coresOfReplica(options), poll);
  return compile::machineOfTrials(options);
}

bool isMachineOfTrials(const std::string& machine, const compile::ProgramOptions& options,
                       const std::function<bool()>& poll) {
  const bool differs = machine != machineOfTrials(options, poll);
  const std::shared_ptr<collective::Peers> peers = joinPeers(options);
  return !(peers ? anyOf(*peers, differs) : differs);
}

void requireSameProgram(collective::Peers& peers, const std::string& key, compile::OutputRank output_rank,
                        const std::function<bool()>& poll) {
  const std::vector<collective::Announcement> all =
      exchange(peers,
               {.act = "compiles a model",
                .facts = {collective::hashOf(key.data(), key.size()), static_cast<uint64_t>(output_rank)}},
               poll);
  const auto ranks = collective::firstDiffering(all, 1, peers.processes());
  ABELE_REQUIRE(ranks.process < 0, E0713,
                {.what = cat("process ", ranks.process, " sends results to other processes than process ", ranks.from),
                 .at = cat("process ", peers.process(), " of ", peers.processes()),
                 .found = cat("outputRank(\"", wordOf(all[static_cast<size_t>(ranks.process)].facts[1]), "\")"),
                 .expected = cat("outputRank(\"", wordOf(all[static_cast<size_t>(ranks.from)].facts[1]), "\")"),
                 .remedy = "set the same outputRank in all processes"});
  const int64_t other = collective::firstDiffering(all, 0, peers.processes()).process;
  ABELE_REQUIRE(other < 0, E0713,
                {.what = cat("process ", other, " compiled another program than process 0"),
                 .at = cat("process ", peers.process(), " of ", peers.processes()),
                 .expected = "the same model, options, optimizer and shapes in all processes",
                 .remedy = "make sure that what a process trains does not depend on its index, and pass all processes "
                           "batches of one size"});
}

void joinProcesses(const compile::ProcessOptions& processes, collective::MakeDeviceGroup make) {
  if (make) collective::setDeviceGroups(std::move(make));
  collective::Peers::join(processes.group, processes.index, processes.count);
}

// The exchange ends when all processes are here, because each needs the texts of all others.
void synchronize(const compile::ProcessOptions& processes) {
  collective::Peers::join(processes.group, processes.index, processes.count)->exchange(" ");
}

bool anyOf(const compile::ProcessOptions& processes, bool value) {
  return anyOf(*collective::Peers::join(processes.group, processes.index, processes.count), value);
}

bool anyOfJoined(bool value) {
  const std::shared_ptr<collective::Peers> peers = collective::Peers::find(compile::ProcessOptions().group);
  return peers ? anyOf(*peers, value) : value;
}

compile::ProcessOptions placeOfThisProcess() {
  constexpr const char* kNames[][2] = {{"WORLD_SIZE", "RANK"}, {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}};
  for (const auto& [count, index] : kNames)
    if (!environmentText(count).empty() && !environmentText(index).empty()) {
      const ProcessPlace place = processPlace(count, index);
      return {.index = place.index, .count = place.count};
    }
  return {};
}

PopdistPlace popdistPlace() {
  PopdistPlace place;
  place.is_set = !environmentText("POPDIST_NUM_TOTAL_REPLICAS").empty();
  place.total_replicas = environmentInteger("POPDIST_NUM_TOTAL_REPLICAS", 1, 1);
  place.local_replicas =
      environmentInteger("POPDIST_NUM_LOCAL_REPLICAS", place.total_replicas, 1, place.total_replicas);
  place.first_replica = environmentInteger("POPDIST_REPLICA_INDEX_OFFSET", 0, 0, place.total_replicas - 1);
  place.ipus_per_replica = environmentInteger("POPDIST_NUM_IPUS_PER_REPLICA", 1, 1);
  place.instances = place.total_replicas / place.local_replicas;
  place.instance = place.first_replica / place.local_replicas;
  // This launcher's variables do not say how many processes share a replica.
  const compile::ProcessOptions launched = place.is_set ? placeOfThisProcess() : compile::ProcessOptions();
  if (launched.count > place.instances && launched.count % place.instances == 0) {
    place.instances = launched.count;
    place.instance = launched.index;
  }
  return place;
}

void leaveProcesses() { collective::Peers::leaveAll(); }

}  // namespace abele::processes

#include "abele/processes.h"

#include <algorithm>

#include "abele/options.h"
#include "base/error.h"
#include "processes/processes.h"

namespace abele {

void joinProcesses(Options& options) {
  const compile::ProcessOptions place = processes::placeOfThisProcess();
  options.Distributed().configureProcessId(place.index, place.count);
  const processes::PopdistPlace launched = processes::popdistPlace();
  if (launched.is_set)
    options.replicationFactor(launched.isSplit() ? launched.total_replicas : launched.local_replicas);
  if (place.count > 1) processes::joinProcesses(place);
}

namespace popdist {

bool isPopdistEnvSet() { return processes::popdistPlace().is_set; }
int64_t getNumTotalReplicas() { return processes::popdistPlace().total_replicas; }
int64_t getNumLocalReplicas() { return processes::popdistPlace().local_replicas; }
int64_t getReplicaIndexOffset() { return processes::popdistPlace().first_replica; }
int64_t getNumIpusPerReplica() { return processes::popdistPlace().ipus_per_replica; }
int64_t getNumInstances() { return processes::popdistPlace().instances; }
int64_t getInstanceIndex() { return processes::popdistPlace().instance; }
void init() {
  if (getNumInstances() > 1) processes::joinProcesses(processes::popdistPlace().process());
}
void synchronize() {
  if (getNumInstances() > 1) processes::synchronize(processes::popdistPlace().process());
}
void executeOnInstances(std::initializer_list<int64_t> instances, const std::function<void()>& function) {
  ABELE_REQUIRE(function, E0708, {.what = "executeOnInstances got an empty function", .remedy = "pass a function"});
  if (std::ranges::find(instances, getInstanceIndex()) != instances.end()) function();
}

}  // namespace popdist
}  // namespace abele

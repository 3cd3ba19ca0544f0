#include "abele/processes.h"

#include <algorithm>

#include "abele/options.h"
#include "base/error.h"
#include "session/processes.h"

namespace abele {

void joinProcesses(Options& options) {
  const host::ProcessOptions place = host::placeOfThisProcess();
  options.Distributed().configureProcessId(place.index, place.count);
  const host::PopdistPlace launched = host::popdistPlace();
  if (launched.is_set)
    options.replicationFactor(launched.isSplit() ? launched.total_replicas : launched.local_replicas);
  if (place.count > 1) host::joinProcesses(place);
}

namespace popdist {

bool isPopdistEnvSet() { return host::popdistPlace().is_set; }
int64_t getNumTotalReplicas() { return host::popdistPlace().total_replicas; }
int64_t getNumLocalReplicas() { return host::popdistPlace().local_replicas; }
int64_t getReplicaIndexOffset() { return host::popdistPlace().first_replica; }
int64_t getNumIpusPerReplica() { return host::popdistPlace().ipus_per_replica; }
int64_t getNumInstances() { return host::popdistPlace().instances; }
int64_t getInstanceIndex() { return host::popdistPlace().instance; }
void init() {
  if (getNumInstances() > 1) host::joinProcesses(host::popdistPlace().process());
}
void synchronize() {
  if (getNumInstances() > 1) host::synchronize(host::popdistPlace().process());
}
void executeOnInstances(std::initializer_list<int64_t> instances, const std::function<void()>& function) {
  ABELE_REQUIRE(function, E0708,
                {.what = "executeOnInstances of a function that holds nothing", .remedy = "pass a function"});
  if (std::find(instances.begin(), instances.end(), getInstanceIndex()) != instances.end()) function();
}

}  // namespace popdist
}  // namespace abele

// For users of the library: the rank of this process among those that a launcher started, and functions for all of
// these processes between steps. A training that sets several processes in Options::Distributed need not call these
// functions: its first step connects the processes.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>

#include "abele/export.h"

namespace abele {

class Options;

/// Reads the rank of this process from the launcher's variables, those of torchrun (RANK, WORLD_SIZE), poprun or
/// mpirun, passes it to options.Distributed(), and connects this process with the others. Under poprun it also sets the
/// number of replicas. All processes call it at the same place. A single process does not connect. Throws E0714 if the
/// others are not found within ABELE_PROCESS_TIMEOUT seconds (1800), E0702 for a variable that is not a number.
ABELE_API void joinProcesses(Options& options);

/// The rank of this process from poprun's variables (POPDIST_NUM_TOTAL_REPLICAS and others). Without them there is one
/// process with one replica. Each function throws E0702 for a variable that is not a number. Source: spec clients.md,
/// item 21.
namespace popdist {

/// Returns true if poprun started this process.
ABELE_API bool isPopdistEnvSet();
ABELE_API int64_t getNumTotalReplicas();
ABELE_API int64_t getNumLocalReplicas();
ABELE_API int64_t getReplicaIndexOffset();
ABELE_API int64_t getNumIpusPerReplica();
ABELE_API int64_t getNumInstances();
ABELE_API int64_t getInstanceIndex();
/// Connects this process with the others. Throws E0714.
ABELE_API void init();
/// Waits until all processes have called this. Throws E0714, E0606.
ABELE_API void synchronize();
/// Calls the function in these processes only.
ABELE_API void executeOnInstances(std::initializer_list<int64_t> instances, const std::function<void()>& function);

}  // namespace popdist
}  // namespace abele

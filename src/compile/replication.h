// Checks for replicas: copies in the executable, buffers that differ, parameters of groups.
#pragma once

#include <vector>

#include "base/at_end.h"
#include "capture/capture.h"
#include "compile/program_options.h"
#include "exe/build/build.h"

namespace abele::compile {

exe::Replication replicationOf(const ProgramOptions& options);
/// Throws E0702 if replicas with different inputs write a buffer that they share. Running statistics of normalisations
/// are allowed, because each replica has its own. graph: the graph that the executable was built from.
void checkBuffers(const ProgramOptions& options, const exe::Executable& executable, const ir::Graph& graph);
/// Throws E0706 for gradient clipping, and for updates that an overflow skips, if replicas have their own parameters,
/// because each replica would decide differently; and for updates on the host, which has one gradient for all replicas.
void checkClipping(const ProgramOptions& options, const OptimizerSpec& optimizer);
/// Throws E0402 if the stages need another number of processes than there are.
void checkStageProcesses(const ProgramOptions& options, const exe::Executable& executable);
/// Throws E0402 if all replicas together need more devices than there are.
void checkReplicaDevices(const ProgramOptions& options, const plan::Plan& plan);
/// Until the returned object ends, parameters with a ReplicaGrouping have the shape of a single value, which forward
/// sees. Throws E0702 for groupings that do not fit, and then changes nothing.
AtEnd oneValueEach(const std::vector<capture::ModelTensor>& model, const std::vector<ReplicaGrouping>& groupings,
                   int64_t replicas);

}  // namespace abele::compile

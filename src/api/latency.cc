// Latencies of a model's last call.
#include "session/latency.h"

#include "abele/model.h"
#include "api/core.h"

namespace abele {
namespace {

Latency publicLatency(const host::Session& session, host::Way way) {
  const host::Latency found = host::latencyOf(session.perfCounters(), way);
  return {found.least, found.most, found.average};
}

}  // namespace

Latency CompiledModel::getLatency() const { return publicLatency(enter()->compiled("getLatency()"), host::Way::kAll); }
Latency CompiledModel::getHostIpuLatency() const {
  return publicLatency(enter()->compiled("getHostIpuLatency()"), host::Way::kHostToDevice);
}
Latency CompiledModel::getComputeLatency() const {
  return publicLatency(enter()->compiled("getComputeLatency()"), host::Way::kCompute);
}
Latency CompiledModel::getIpuHostLatency() const {
  return publicLatency(enter()->compiled("getIpuHostLatency()"), host::Way::kDeviceToHost);
}

}  // namespace abele

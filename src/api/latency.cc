// Latencies of a model's last call.
#include "session/latency.h"

#include "abele/model.h"
#include "api/core.h"

namespace abele {
namespace {

Latency publicLatency(const session::Session& session, session::Way way) {
  const session::Latency found = session::latencyOf(session.perfCounters(), way);
  return {found.least, found.most, found.average};
}

}  // namespace

Latency CompiledModel::getLatency() const {
  return publicLatency(enter()->compiled("getLatency()"), session::Way::kAll);
}
Latency CompiledModel::getHostIpuLatency() const {
  return publicLatency(enter()->compiled("getHostIpuLatency()"), session::Way::kHostToDevice);
}
Latency CompiledModel::getComputeLatency() const {
  return publicLatency(enter()->compiled("getComputeLatency()"), session::Way::kCompute);
}
Latency CompiledModel::getIpuHostLatency() const {
  return publicLatency(enter()->compiled("getIpuHostLatency()"), session::Way::kDeviceToHost);
}

}  // namespace abele

// Latencies of a call, from the moments at which its tensors moved. Source: spec executor.md section 8.
#pragma once

#include "session/session.h"

namespace abele::session {

/// Over the micro-batches that the call returned; zeros before the first call and with synthetic data. Units: s.
struct Latency {
  double least = 0, most = 0, average = 0;
};
enum class Way {
  kHostToDevice,  // from the first request of an input until all inputs are complete
  kCompute,       // from complete inputs until the last output is ready
  kDeviceToHost,  // from the first output that is ready until all are complete
  kAll,           // from the first request of an input until all outputs are complete
};
Latency latencyOf(const PerfCounters& counters, Way way);

}  // namespace abele::session

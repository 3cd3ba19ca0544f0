// For users of the library: predicts the time and memory of a pipeline before it runs. Costs: docs/simulator.md. Read
// options.h first.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "abele/export.h"
#include "abele/options.h"

namespace abele {

struct SimulationOptions {
  Schedule schedule = Schedule::k1F1B;
  bool sharded = false;  // one stage at a time instead of a schedule
  bool training = true;  // false: only forwards, one per device iteration
  int64_t device_iterations = 1;
  int64_t gradient_accumulation = 1;
  /// Number of devices that share the stages as evenly as possible; 0: use the stages and devices of the costs.
  int devices = 0;
  int chunks = 1;  // stages of each device, with `devices`
  /// Bytes that every device has, and other numbers of bytes for single devices; for Simulation::fits.
  std::optional<int64_t> device_bytes = {};
  std::map<int, int64_t> bytes_of_device = {};
  /// Whether to write texts with an entry per action, which for large pipelines cost more than the simulation.
  bool with_chart = true, with_trace = true;
};

/// Unit: bytes.
struct SimulatedMemory {
  int device = 0;
  int64_t peak_bytes = 0;
  std::optional<int64_t> spare_bytes;  // negative: this many bytes are missing; empty: no limit
};

struct Simulation {
  int64_t step_ns = 0;
  double bubble = 0;                    // share of all device time that is spent idle
  int64_t peak_bytes = 0;               // the largest peak of any device
  bool fits = true;                     // every device has the bytes that it needs
  std::vector<SimulatedMemory> memory;  // by device
  std::string json;                     // all figures, by device and over time
  std::string chart;                    // the schedule, one slot per action; empty unless asked for
  std::string trace;                    // Chrome's trace format (chrome://tracing, Perfetto); empty unless asked for
};

/// costs: JSON from TrainingModel::costs(), or written by hand. Throws E0404 if it cannot be read, or if `devices` *
/// `chunks` is larger than the number of stages. Threads: safe.
ABELE_API Simulation simulate(const std::string& costs, const SimulationOptions& options = {});

}  // namespace abele

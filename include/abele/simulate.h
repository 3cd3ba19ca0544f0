// For users of the library: what a pipeline would take, before it runs. Costs: docs/simulator.md. Read options.h first.
#pragma once

#include <cstdint>
#include <string>

#include "abele/export.h"
#include "abele/options.h"

namespace abele {

struct SimulationOptions {
  Schedule schedule = Schedule::k1F1B;
  bool sharded = false;  // one stage at a time instead of a schedule
  bool training = true;  // false: forwards only, deviceIterations of them
  int64_t device_iterations = 1;
  int64_t gradient_accumulation = 1;
  /// Shares the stages among so many devices, in pieces as equal as can be; 0: stages and devices as in the costs.
  int devices = 0;
  int chunks = 1;  // stages of each device, with `devices`
  /// Texts with an entry for every action: for large pipelines they cost more than the simulation.
  bool with_chart = true, with_trace = true;
};

struct Simulation {
  int64_t step_ns = 0;
  double bubble = 0;       // share of all device time that is no work
  int64_t peak_bytes = 0;  // of the fullest device
  std::string json;        // all figures, by device and over time
  std::string chart;       // the schedule, every action one slot long; empty when not asked for
  std::string trace;       // Chrome's trace format (chrome://tracing, Perfetto); empty when not asked for
};

/// costs: JSON as TrainingModel::costs() returns it, or written by hand. Throws E0404. Threads: safe.
ABELE_API Simulation simulate(const std::string& costs, const SimulationOptions& options = {});

}  // namespace abele

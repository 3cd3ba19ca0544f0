// For users of the library: what this machine has, as `abele env` prints it, and how fast its links are.
#pragma once

#include <string>
#include <vector>

#include "abele/export.h"

namespace abele {

struct EnvironmentRow {
  std::string name;   // "devices"
  std::string value;  // for people; one line
};

/// Versions, processor, devices, and the variables that are set (docs/environment.md). If something is missing, its row
/// says so; nothing is thrown.
ABELE_API std::vector<EnvironmentRow> environment();

/// Measures the links between the processes that a launcher started, and between the accelerators of each process.
/// Writes the machine file, which later compilations read (docs/simulator.md, "The machine file"). All processes call
/// it, on a quiet machine. Throws E0702 for a single process without several accelerators, E0712 if the file cannot be
/// written, E0714 and E0606 as joinProcesses. Source: ours.
ABELE_API void measureLinks();

}  // namespace abele

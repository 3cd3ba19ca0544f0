// For users of the library: what this machine has, as `abele env` prints it.
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

}  // namespace abele

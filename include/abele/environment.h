// For users of the library: what there is on this machine, as `abele env` prints it.
#pragma once

#include <string>
#include <vector>

#include "abele/export.h"

namespace abele {

struct EnvironmentRow {
  std::string name;   // "devices"
  std::string value;  // for people; one line
};

/// Versions, processor, devices, and the variables that are set (docs/environment.md). Throws nothing of what is
/// missing here: a row says it.
ABELE_API std::vector<EnvironmentRow> environment();

}  // namespace abele

// Private to plan/: reads and writes a machine that is part of other JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "plan/json_reader.h"
#include "plan/links.h"

namespace abele::plan {

/// Throws what the reader throws.
Machine readMachine(const JsonReader& reader, const Json& value);
nlohmann::ordered_json machineJson(const Machine& machine);

}  // namespace abele::plan

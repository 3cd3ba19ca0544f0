// For schedule/ and plan/: reads and writes a machine as a part of other JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "schedule/json_reader.h"
#include "schedule/links.h"

namespace abele::schedule {

/// Throws the errors of the reader.
Machine readMachine(const JsonReader& reader, const Json& value);
nlohmann::ordered_json machineJson(const Machine& machine);

}  // namespace abele::schedule

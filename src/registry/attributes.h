// The attributes of the devices that programs see, in the form of Graphcore's tools. Each device is emulated by some
// cores of this machine, so sensors are N/A. Load and owners are those of the programs that run.
// Source: spec tools.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "registry/attachment.h"
#include "registry/devices.h"

namespace abele::registry {

constexpr const char* kPartition = "p1";
constexpr const char* kDeviceHost = "127.0.0.1";
constexpr const char* kClock = "1330MHz";  // the clock that cycle counts assume
constexpr const char* kArchitecture = "ipu2";
constexpr int64_t kPerMachine = 4;  // IPU# counts down within a machine while ids count up

int64_t ipuNumber(int64_t device);

/// The attributes in the order in which they are printed.
using Attributes = std::vector<std::pair<std::string, std::string>>;
/// number: id of the group. all: who has devices, from attached().
Attributes attributesOf(size_t number, const DeviceGroup& group, const std::vector<Attached>& all);

}  // namespace abele::registry

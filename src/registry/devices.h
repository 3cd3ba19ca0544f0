// The devices that programs see. There is no such hardware: CPU devices represent them, and ABELE_EMULATED_DEVICES sets
// their number. Source: spec environment.md section 7; options.md section 2, useIpuId.
#pragma once

#include <cstdint>
#include <vector>

namespace abele::registry {

/// Throws E0702 if the variable is not an integer.
int64_t numDevices();
/// Neighbouring devices that a program can reserve at once.
struct DeviceGroup {
  int64_t first = 0, count = 0;
};
/// All groups by their id: single devices come first, then pairs, fours, ...
std::vector<DeviceGroup> deviceGroups();

}  // namespace abele::registry

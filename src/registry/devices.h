// The devices that programs are told of. There is no such hardware: CPU devices stand for them, as many as
// ABELE_EMULATED_DEVICES says. Source: spec environment.md section 7; options.md section 2, useIpuId.
#pragma once

#include <cstdint>
#include <vector>

namespace abele::registry {

/// Throws E0702 for a variable that is no integer.
int64_t numDevices();
/// Neighbours that can be reserved at once.
struct DeviceGroup {
  int64_t first = 0, count = 0;
};
/// By the id of the group: single devices come first, then pairs, fours, ...
std::vector<DeviceGroup> deviceGroups();

}  // namespace abele::registry

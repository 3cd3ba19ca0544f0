// Which of the devices that there are (registry/devices.h) a program can reserve. Source: spec options.md section 2,
// useIpuId.
#pragma once

#include <cstdint>
#include <vector>

#include "model/policy.h"
#include "options/store.h"

namespace abele::host {

/// Throws E0402 where useIpuId names no group.
void requireTarget(const Options::Values& values);
/// Throws E0402 for stages on devices that a program of this policy cannot reserve.
void requireDevices(const Policy& policy, const Options::Values& values, const std::vector<int>& stage_devices);

/// Cores that this thread may run on.
int64_t availableCores();
/// How many devices an AutoSplit without a number is for, where devices are reserved in powers of two: as many as each
/// replica of this host has cores.
int64_t devicesToSplitFor(int64_t cores, const Options::Values& values);

}  // namespace abele::host

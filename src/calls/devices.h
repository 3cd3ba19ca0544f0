// Which of the existing devices (registry/devices.h) a program can reserve. Source: spec options.md section 2,
// useIpuId.
#pragma once

#include <cstdint>
#include <vector>

#include "calls/policy.h"
#include "options/store.h"

namespace abele::calls {

/// Throws E0402 if useIpuId does not name a group.
void requireTarget(const Options::Values& values);
/// Throws E0402 for stages on devices that a program of this policy cannot reserve.
void requireDevices(const Policy& policy, const Options::Values& values, const std::vector<int>& stage_devices);

/// Cores that this thread may run on.
int64_t availableCores();
/// Number of devices for an AutoSplit without a number, if devices are reserved in powers of two: one for each core of
/// a replica on this host.
int64_t devicesToSplitFor(int64_t cores, const Options::Values& values);

}  // namespace abele::calls

// Random numbers of simulated devices. Private to the simulation.
#pragma once

#include <optional>

#include <ATen/core/Generator.h>

namespace simulated {

/// For one kernel that makes `elements` numbers: a generator of the host that follows from the device's (or the given
/// one), which moves on.
at::Generator takeNumbers(const std::optional<at::Generator>& given, int device, int64_t elements);

}  // namespace simulated

// The processor of this machine.
#pragma once

#include <string>

namespace abele {

/// Name, family and model, as in "AMD EPYC (family 25, model 1)": virtual machines often give different processors one
/// name. Reads /proc/cpuinfo. "unknown processor" if it has no name.
std::string processorName();

}  // namespace abele

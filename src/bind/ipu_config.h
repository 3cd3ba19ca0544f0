// For bind/ only: the settings of abele.ipu_config.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace abele::bind {

void registerIpuConfig(pybind11::module_& module);

}  // namespace abele::bind

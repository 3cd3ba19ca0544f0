// Shared by the tools that name devices by their ids.
#pragma once

#include <cstdint>
#include <string>

#include "base/cat.h"
#include "registry/attributes.h"
#include "tool.h"

namespace abele::tools {

/// Throws E0901 if the machine has no device, or group of devices, with this id.
inline void requireDevice(const std::string& tool, int64_t id, size_t number) {
  if (id < 0 || id >= static_cast<int64_t>(number))
    refuse(tool, cat("there is no device ", id), number ? cat("ids are 0 to ", number - 1) : "there are no devices");
}

}  // namespace abele::tools

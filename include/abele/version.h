// For users of the library: the version of Abele; CMakeLists.txt and pyproject.toml read it here. Source stability
// holds within a major version. See abele.h.
#pragma once

#include "abele/export.h"

#define ABELE_VERSION_MAJOR 0
#define ABELE_VERSION_MINOR 1
#define ABELE_VERSION_PATCH 0

namespace abele {

/// The version of the loaded library, as "0.1.0". A program may have been compiled with headers of another version.
ABELE_API const char* version();

}  // namespace abele

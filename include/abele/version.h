// For users of the library: which Abele this is; CMakeLists.txt and pyproject.toml read it here. Source stability holds
// within a major version. See abele.h.
#pragma once

#include "abele/export.h"

#define ABELE_VERSION_MAJOR 0
#define ABELE_VERSION_MINOR 1
#define ABELE_VERSION_PATCH 0

namespace abele {

/// "0.1.0": of the library that is loaded, which may differ from the headers that a program was compiled with.
ABELE_API const char* version();

}  // namespace abele

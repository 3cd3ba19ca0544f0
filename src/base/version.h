// The version of the library. CMake reads it from include/abele/version.h.
#pragma once

namespace abele {

/// "0.1.0".
const char* versionText();

}  // namespace abele

// The version of the library: that of include/abele/version.h, as CMake reads it.
#pragma once

namespace abele {

/// "0.1.0".
const char* versionText();

}  // namespace abele

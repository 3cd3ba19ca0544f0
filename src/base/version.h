// The version of the library, which CMake says once.
#pragma once

namespace abele {

/// "0.1.0".
const char* versionText();

}  // namespace abele

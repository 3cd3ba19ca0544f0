// For every layer: the environment variables that users set. Source: spec environment.md section 3.
#pragma once

#include <cstdint>
#include <string>

namespace abele {

/// "" when it is not set.
std::string environmentText(const char* name);
/// `fallback` when it is not set or empty. Throws E0702 for text that is no integer.
int64_t environmentInteger(const char* name, int64_t fallback);

}  // namespace abele

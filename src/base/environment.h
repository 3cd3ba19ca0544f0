// For every layer: the environment variables that users set. Source: spec environment.md section 3.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace abele {

/// "" when it is not set.
std::string environmentText(const char* name);
/// `fallback` when it is not set or empty. Throws E0702 for text that is no integer.
int64_t environmentInteger(const char* name, int64_t fallback);
/// The same, and E0702 for what is not from least to most.
int64_t environmentInteger(const char* name, int64_t fallback, int64_t least,
                           int64_t most = std::numeric_limits<int64_t>::max());

/// Which of several processes this is, as two variables of a launcher say; those that are not set say 0 of 1.
struct ProcessPlace {
  int64_t index = 0, count = 1;
};
/// Throws E0702 where there is no such place.
ProcessPlace processPlace(const char* count_name, const char* index_name);

}  // namespace abele

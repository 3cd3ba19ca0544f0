// The environment variables that users set. Every layer reads them here. Source: spec environment.md section 3.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace abele {

/// The value of the variable; "" when it is not set.
std::string environmentText(const char* name);
/// The value as an integer; `fallback` when the variable is not set or empty. Throws E0702 for other text.
int64_t environmentInteger(const char* name, int64_t fallback);
/// The same, and throws E0702 for a value below `least` or above `most`.
int64_t environmentInteger(const char* name, int64_t fallback, int64_t least,
                           int64_t most = std::numeric_limits<int64_t>::max());

/// The index of this process and the number of processes, from two variables of a launcher. Without them: process 0 of
/// 1.
struct ProcessPlace {
  int64_t index = 0, count = 1;
};
/// Throws E0702 if the index is not below the number of processes, or one of them is not a number.
ProcessPlace processPlace(const char* count_name, const char* index_name);

}  // namespace abele

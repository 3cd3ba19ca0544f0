// Throws the typed errors of abele/error.h, with the user's own names and a remedy. Every layer uses it.
// Codes: abele/errors.def. Form: docs/errors.md.
#pragma once

#include <map>
#include <string>

#include "abele/error.h"
#include "base/cat.h"

namespace abele {

/// Messages show C++ code. When a front end of another language is loaded, it sets its own spelling of each phrase.
void setPhrases(std::map<std::string, std::string> phrases);
/// A phrase of C++ in the language of the user's program.
std::string inLanguage(const std::string& cpp);

[[noreturn]] void throwUser(ErrorCode code, Message message);
[[noreturn]] void throwDevice(ErrorCode code, Message message, std::string recovery_action = {});
[[noreturn]] void throwInternal(const char* file, int line, const char* condition, std::string detail);

}  // namespace abele

/// Checks input from outside. ABELE_REQUIRE(n >= 1, E0703, {.what = cat("gradient accumulation is ", n), .remedy =
/// "..."})
#define ABELE_REQUIRE(condition, code, ...)                                                       \
  do {                                                                                            \
    if (!(condition)) ::abele::throwUser(::abele::ErrorCode::code, ::abele::Message __VA_ARGS__); \
  } while (false)

/// Checks Abele's own invariants, in release builds too. ABELE_CHECK(a == b, "slot ", a)
#define ABELE_CHECK(condition, ...)                                                                      \
  do {                                                                                                   \
    if (!(condition)) ::abele::throwInternal(__FILE__, __LINE__, #condition, ::abele::cat(__VA_ARGS__)); \
  } while (false)

#ifdef NDEBUG
#define ABELE_DCHECK(condition, ...) \
  do {                               \
  } while (false)
#else
#define ABELE_DCHECK(condition, ...) ABELE_CHECK(condition, __VA_ARGS__)
#endif

// For every layer: how the typed errors of abele/error.h are thrown, with the user's own names and a remedy.
// Codes: abele/errors.def. Form: docs/errors.md.
#pragma once

#include <string>

#include "abele/error.h"
#include "base/cat.h"

namespace abele {

/// The language of the program: messages say what to write in it. Python's module sets kPython when it is loaded.
enum class Language { kCpp, kPython };
void setLanguage(Language language);
/// Of two phrases that of the program's language.
const char* inLanguage(const char* python, const char* cpp);
std::string inLanguage(std::string python, std::string cpp);

[[noreturn]] void throwUser(ErrorCode code, Message message);
[[noreturn]] void throwDevice(ErrorCode code, Message message, std::string recovery_action = {});
[[noreturn]] void throwInternal(const char* file, int line, const char* condition, std::string detail);

}  // namespace abele

/// Checks what comes from outside.
/// ABELE_REQUIRE(n >= 1, E0703, {.what = cat("gradient accumulation is ", n), .remedy = "..."})
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

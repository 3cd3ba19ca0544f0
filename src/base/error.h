// For every layer: typed errors with a code, the user's own names and a remedy.
// Codes: errors.def. Form: docs/errors.md.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "base/cat.h"

namespace abele {

enum class ErrorCode : int {
#define ABELE_ERROR(code, name, summary) code,
#include "base/errors.def"
#undef ABELE_ERROR
};

/// "E0214", "stage-order", one line.
const char* errorCodeText(ErrorCode code);
const char* errorName(ErrorCode code);
const char* errorSummary(ErrorCode code);

/// The language of the program: messages say what to write in it. Python's module sets kPython when it is loaded.
enum class Language { kCpp, kPython };
void setLanguage(Language language);
/// Of two phrases that of the program's language.
const char* inLanguage(const char* python, const char* cpp);
std::string inLanguage(std::string python, std::string cpp);

/// The parts of a message. Empty parts are left out of the text.
struct Message {
  std::string what;  // lower case, values, no full stop
  std::string at;    // node, user's file:line
  std::string found;
  std::string expected;
  std::string remedy;  // what to do; it must work
};

/// Base of all errors of Abele. what() is the whole text: code, name, what, at, found, expected, try.
class Error : public std::exception {
 public:
  Error(ErrorCode code, Message message);
  const char* what() const noexcept override { return text_.c_str(); }
  ErrorCode code() const { return code_; }
  const Message& message() const { return message_; }
  /// Adds a line of context ("in stage 2, micro-batch 5") shown below the message.
  void addContext(std::string line);
  const std::string& context() const { return context_; }

 private:
  void render();
  ErrorCode code_;
  Message message_;
  std::string context_;
  std::string text_;
};

/// The program or its options are wrong.
class UserError : public Error {
  using Error::Error;
};
/// A device, peer, disk or memory failed. recovery_action: "", IPU_RESET, PARTITION_RESET or FULL_RESET.
class DeviceError : public Error {
 public:
  DeviceError(ErrorCode code, Message message, std::string recovery_action = {})
      : Error(code, std::move(message)), recovery_action_(std::move(recovery_action)) {}
  const std::string& recoveryAction() const { return recovery_action_; }

 private:
  std::string recovery_action_;
};
/// Abele itself is wrong: please report.
class InternalError : public Error {
  using Error::Error;
};

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

// For users of the library: the exceptions of Abele. Error is the base. UserError: the program or its options are
// wrong. DeviceError: a device, peer, disk or memory failed. InternalError: Abele is wrong. what() says what was found
// and expected, and gives a remedy. code() is a row of docs/errors.md. An exception that forward throws passes
// unchanged.
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace abele {

enum class ErrorCode : int {
#define ABELE_ERROR(code, name, summary) code,
#include "abele/errors.def"
#undef ABELE_ERROR
};

/// "E0303", "stage-order", one line.
const char* errorCodeText(ErrorCode code);
const char* errorName(ErrorCode code);
const char* errorSummary(ErrorCode code);

/// The parts of a message. Empty parts are left out of the text.
struct Message {
  std::string what;  // lower case, values, no full stop
  std::string at;    // node, user's file:line
  std::string found;
  std::string expected;
  std::string remedy;  // advice for the user; it must work
};

/// Base of all errors of Abele. what() is the whole text: code, name, what, at, found, expected, try.
class Error : public std::exception {
 public:
  Error(ErrorCode code, Message message);
  const char* what() const noexcept override { return text_.c_str(); }
  ErrorCode code() const { return code_; }
  const Message& message() const { return message_; }
  /// Adds a line of context ("in stage 2, micro-batch 5"), shown below the message.
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

}  // namespace abele

// What a call throws.
#pragma once

#include <string>

#include "abele/error.h"

namespace abele::test {

/// The text of the Error that fn throws; nothing thrown: an empty string.
template <class Fn>
std::string errorOf(const Fn& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}
/// Its code: "E0704".
template <class Fn>
std::string codeOf(const Fn& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return errorCodeText(error.code());
  }
  return "";
}

}  // namespace abele::test

// What a call of the public API throws. Used by the tests of this folder.
#pragma once

#include <string>

#include "abele/error.h"

namespace abele::test {

/// The text of the Error that fn throws; nothing thrown: an empty string.
template <class Fn>
std::string errorOf(Fn fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}
/// Its code: "E0704".
template <class Fn>
std::string codeOf(Fn fn) {
  const std::string text = errorOf(fn);
  return text.substr(0, text.find(' '));
}

}  // namespace abele::test

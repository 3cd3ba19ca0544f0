// Makes text for messages and JSON from file names and files with any bytes.
#pragma once

#include <string>
#include <string_view>

namespace abele {

/// The text, with \xNN for bytes that are not UTF-8 and for control characters other than tabs and line ends.
std::string toUtf8(std::string_view text);
/// True for control characters too, which are valid UTF-8.
bool isUtf8(std::string_view text);

}  // namespace abele

// Text of messages and of JSON, whatever bytes file names and files hold.
#pragma once

#include <string>
#include <string_view>

namespace abele {

/// The text, with bytes that are no UTF-8 and control characters other than tabs and ends of lines as \xNN.
std::string toUtf8(std::string_view text);
/// Control characters are UTF-8.
bool isUtf8(std::string_view text);

}  // namespace abele

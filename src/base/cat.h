// cat(a, b, ...) joins values into one string. Every layer uses it.
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace abele {
namespace detail {
inline void append(std::string& out, std::string_view text) { out += text; }
inline void append(std::string& out, const char* text) { out += text; }
inline void append(std::string& out, char c) { out += c; }
inline void append(std::string& out, bool b) { out += b ? "true" : "false"; }
template <class T>
  requires(std::integral<T> || std::floating_point<T>)
void append(std::string& out, T number) {
  char buffer[64];
  auto end = std::to_chars(buffer, buffer + sizeof buffer, number).ptr;
  out.append(buffer, end);
}
}  // namespace detail

template <class... Parts>
std::string cat(const Parts&... parts) {
  std::string out;
  (detail::append(out, parts), ...);
  return out;
}

}  // namespace abele

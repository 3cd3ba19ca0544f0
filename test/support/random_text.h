// Texts with a few changes: bytes, numbers and lines. For tests of parsers.
#pragma once

#include <cctype>
#include <random>
#include <string>
#include <string_view>

namespace abele::test {

inline std::string damaged(std::string text, std::mt19937& random) {
  auto below = [&](size_t n) { return random() % n; };
  for (size_t changes = 1 + below(4); changes > 0 && !text.empty(); --changes) {
    size_t at = below(text.size());
    constexpr std::string_view kBytes = "0123456789%,:()[]{}+-\"\\#=@_ \nabefinsvwx.";
    switch (below(8)) {
      case 0: text[at] = kBytes[below(kBytes.size())]; break;
      case 1: text.insert(at, 1, kBytes[below(kBytes.size())]); break;
      case 2: text.erase(at, 1 + below(8)); break;
      case 3:
      case 4:
      case 5:
      case 6:  // another number, which the parser takes more often
        while (at + 1 < text.size() && !std::isdigit(static_cast<unsigned char>(text[at]))) ++at;
        text[at] = kBytes[below(10)];
        break;
      default: {  // another line, from anywhere
        size_t from = text.rfind('\n', below(text.size())), to = text.find('\n', at);
        if (from == std::string::npos || to == std::string::npos) break;
        text.insert(to, text.substr(from, text.find('\n', from + 1) - from));
      }
    }
  }
  return text;
}

}  // namespace abele::test

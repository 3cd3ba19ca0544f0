#include "base/environment.h"

#include <charconv>
#include <cstdlib>

#include "base/error.h"

namespace abele {

std::string environmentText(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? std::string() : std::string(text);
}

int64_t environmentInteger(const char* name, int64_t fallback) {
  const std::string text = environmentText(name);
  if (text.empty()) return fallback;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  ABELE_REQUIRE(error == std::errc() && end == text.data() + text.size(), E0702,
                {.what = cat("environment variable ", name, " is ", text),
                 .expected = "an integer",
                 .remedy = cat("set ", name, " to an integer or unset it")});
  return value;
}

}  // namespace abele

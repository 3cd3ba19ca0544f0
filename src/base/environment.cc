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

int64_t environmentInteger(const char* name, int64_t fallback, int64_t least, int64_t most) {
  const int64_t value = environmentInteger(name, fallback);
  const bool is_bounded = most != std::numeric_limits<int64_t>::max();
  ABELE_REQUIRE(value >= least && value <= most, E0702,
                {.what = cat("environment variable ", name, " is ", value),
                 .expected = cat("an integer, ", is_bounded ? cat(least, " to ", most) : cat(least, " or more")),
                 .remedy = cat("set ", name, " to such a number, or unset it")});
  return value;
}

ProcessPlace processPlace(const char* count_name, const char* index_name) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const ProcessPlace place{.index = environmentInteger(index_name, 0),
                           .count = environmentInteger(count_name, 1, 1, kMost)};
  const bool is_set = !environmentText(count_name).empty();
  ABELE_REQUIRE(place.index >= 0 && place.index < place.count, E0702,
                {.what = cat("environment variable ", index_name, " is ", place.index),
                 .found = cat(count_name, is_set ? cat(" is ", place.count) : " is not set: one process"),
                 .expected = cat("the index of a process: ", place.count == 1 ? "0" : cat("0 to ", place.count - 1)),
                 .remedy = "set both, as launchers do (poprun, torchrun, mpirun), or unset both"});
  return place;
}

}  // namespace abele

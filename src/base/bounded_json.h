// JSON of files that anybody may have written: text that is nested without end would exhaust memory and stack.
#pragma once

#include <array>
#include <string>
#include <unordered_set>

#include <nlohmann/json.hpp>

namespace abele {

/// The value of a text; a discarded one (is_discarded()) where this is no JSON, nested deeper than the formats here, or
/// has an object with two values of one name: readers take one or the other.
inline nlohmann::ordered_json boundedJson(const std::string& text) {
  using Json = nlohmann::ordered_json;
  constexpr int kDeepest = 16;
  struct Refused {};
  std::array<std::unordered_set<std::string>, kDeepest + 1> keys;  // of the open object of each depth
  const auto look = [&](int depth, Json::parse_event_t event, const Json& value) {
    if (depth > kDeepest) throw Refused();
    if (event == Json::parse_event_t::object_start && depth < kDeepest) keys[static_cast<size_t>(depth) + 1].clear();
    if (event == Json::parse_event_t::key && !keys[static_cast<size_t>(depth)].insert(value.get<std::string>()).second)
      throw Refused();
    return true;
  };
  // The parser takes a zero for the end of the text.
  if (text.find('\0') != std::string::npos) return Json::value_t::discarded;
  try {
    return Json::parse(text, look, /*allow_exceptions=*/false);
  } catch (const Refused&) {
    return Json::value_t::discarded;
  }
}

}  // namespace abele

// JSON of files that anybody may have written: text that is nested without end would exhaust memory and stack.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace abele {

/// The value of a text; a discarded one (is_discarded()) where this is no JSON, or nested deeper than the formats here.
inline nlohmann::ordered_json boundedJson(const std::string& text) {
  using Json = nlohmann::ordered_json;
  constexpr int kDeepest = 16;
  struct TooDeep {};
  const auto look = [](int depth, Json::parse_event_t, const Json&) {
    if (depth > kDeepest) throw TooDeep();
    return true;
  };
  // The parser takes a zero for the end of the text.
  if (text.find('\0') != std::string::npos) return Json::value_t::discarded;
  try {
    return Json::parse(text, look, /*allow_exceptions=*/false);
  } catch (const TooDeep&) {
    return Json::value_t::discarded;
  }
}

}  // namespace abele

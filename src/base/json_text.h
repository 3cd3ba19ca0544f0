// JSON from untrusted files: limited depth, no repeated name in an object, and errors with a line and a path. Endless
// nesting would exhaust memory and stack. Of two values under one name some readers take the first, some the last.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace abele {

/// Thrown with the reason why a text is not valid JSON, and the line.
struct JsonFault {
  int64_t line = 1;
  std::string found;
};

/// The value of a text, and the line of each part of it.
class JsonText {
 public:
  using Json = nlohmann::ordered_json;

  /// Throws JsonFault.
  explicit JsonText(const std::string& text);
  JsonText(const JsonText&) = delete;
  JsonText& operator=(const JsonText&) = delete;

  const Json& root() const { return root_; }
  Json& root() { return root_; }
  /// "line 3, stages[1].users": the place of root(), or of a value in it, in the text.
  std::string placeOf(const Json& value) const;

 private:
  Json root_;
  std::vector<int64_t> lines_;  // line of each value, in the order of the text
};

/// Only the value; a discarded value (is_discarded()) for a text that JsonText refuses.
nlohmann::ordered_json boundedJson(const std::string& text);

}  // namespace abele

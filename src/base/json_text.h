// JSON from untrusted files: limited depth, no repeated name in an object, and errors with a line and a path. Endless
// nesting would exhaust memory and stack. Of two values under one name, readers disagree on which one counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace abele {

/// Why a text cannot be read as JSON, and the line.
struct JsonFault {
  int64_t line = 1;
  std::string found;
};

/// The value of a text. It knows where each part of it stood in the text.
class JsonText {
 public:
  using Json = nlohmann::ordered_json;

  /// Throws JsonFault.
  explicit JsonText(const std::string& text);
  JsonText(const JsonText&) = delete;
  JsonText& operator=(const JsonText&) = delete;

  const Json& root() const { return root_; }
  Json& root() { return root_; }
  /// "line 3, stages[1].users": where root(), or a value in it, stood in the text.
  std::string placeOf(const Json& value) const;

 private:
  Json root_;
  std::vector<int64_t> lines_;  // line of each value, in the order of the text
};

/// The value without its places; a discarded value (is_discarded()) for a text that JsonText refuses.
nlohmann::ordered_json boundedJson(const std::string& text);

}  // namespace abele

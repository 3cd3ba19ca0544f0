// JSON of files that anybody may have written: bounded, no name twice in an object, and errors that say where. Text
// that is nested without end would exhaust memory and stack; of two values of one name readers take one or the other.
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

/// The value of a text, which knows where its parts were.
class JsonText {
 public:
  using Json = nlohmann::ordered_json;

  /// Throws JsonFault.
  explicit JsonText(const std::string& text);
  JsonText(const JsonText&) = delete;
  JsonText& operator=(const JsonText&) = delete;

  const Json& root() const { return root_; }
  Json& root() { return root_; }
  /// "line 3, stages[1].users" of root() or a value in it, as it was read.
  std::string placeOf(const Json& value) const;

 private:
  Json root_;
  std::vector<int64_t> lines_;  // one for each value, in the order of the text
};

/// The value alone; a discarded one (is_discarded()) where JsonText throws.
nlohmann::ordered_json boundedJson(const std::string& text);

}  // namespace abele

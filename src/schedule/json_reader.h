// For schedule/ and plan/: strict access to JSON, so that each fault in a file of costs is reported with its place.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"

namespace abele::schedule {

using Json = JsonText::Json;

/// Reads a text and throws E0404 with the place of a fault: "costs that cannot be read: ...".
class JsonReader {
 public:
  /// `what` is for messages, "costs". Throws E0404 if the text is not JSON.
  JsonReader(std::string what, const std::string& text);

  const Json& root() const { return text_.root(); }
  /// Calls member(key, value) for every member. Throws E0404 for a value of another type, as the functions below do.
  template <class Fn>
  void readObject(const Json& value, Fn&& member) const {
    require(value, value.is_object(), "an object");
    for (const auto& [key, each] : value.items()) member(key, each);
  }
  /// The keys that an object may have, and the functions that read their values.
  using Members = std::vector<std::pair<std::string, std::function<void(const Json&)>>>;
  void readMembers(const Json& object, const Members& members) const;
  std::function<void(const Json&)> into(int64_t& field) const {
    return [this, &field](const Json& value) { field = readInteger(value); };
  }
  std::function<void(const Json&)> into(bool& field) const {
    return [this, &field](const Json& value) { field = readBool(value); };
  }
  template <class Fn>
  void readList(const Json& value, Fn&& element) const {
    require(value, value.is_array(), "a list");
    for (const Json& each : value) element(each);
  }
  const std::string& readString(const Json& value) const;
  /// Reads a whole number. Fractions are rounded, so that times may be averages.
  int64_t readInteger(const Json& value) const;
  bool readBool(const Json& value) const;

  [[noreturn]] void fail(const Json& value, const std::string& found, std::string expected) const;
  [[noreturn]] void failKey(const Json& value, const std::string& key, std::string expected) const {
    fail(value, cat("unknown key \"", key, "\""), std::move(expected));
  }

 private:
  static JsonText parsed(const std::string& what, const std::string& text);
  void require(const Json& value, bool fits, const char* expected) const;

  std::string what_;
  JsonText text_;
};

}  // namespace abele::schedule

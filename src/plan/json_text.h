// Private to plan/: JSON as a tree whose values know their lines, so that a fault in a file of costs is found again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace abele::plan {

struct JsonValue {
  enum class Kind { kWord, kNumber, kString, kList, kObject };  // kWord: null, true, false
  Kind kind = Kind::kWord;
  double number = 0;
  std::string text;                 // of a string or a word
  std::vector<std::string> keys;    // of an object, beside `elements`
  std::vector<JsonValue> elements;  // of a list or an object
  int64_t line = 1;                 // on which it begins
};

/// Reads what a text holds, and says E0404 about it: "costs that cannot be read: ...". what: "costs", for messages.
class JsonReader {
 public:
  explicit JsonReader(std::string what) : what_(std::move(what)) {}

  /// Throws E0404 for what is no JSON, and for lists in lists deeper than anyone needs.
  JsonValue parse(const std::string& text) const;

  /// member(key, value) of every member. Throws E0404 for what is no object; so do the others.
  template <class Fn>
  void readObject(const JsonValue& value, Fn&& member) const {
    require(value, JsonValue::Kind::kObject);
    for (size_t i = 0; i < value.keys.size(); ++i) member(value.keys[i], value.elements[i]);
  }
  template <class Fn>
  void readList(const JsonValue& value, Fn&& element) const {
    require(value, JsonValue::Kind::kList);
    for (const JsonValue& e : value.elements) element(e);
  }
  const std::string& readString(const JsonValue& value) const {
    require(value, JsonValue::Kind::kString);
    return value.text;
  }
  /// Whole numbers; fractions are rounded, so that times may be averages.
  int64_t readInteger(const JsonValue& value) const;
  bool readBool(const JsonValue& value) const;

  [[noreturn]] void fail(int64_t line, std::string found, std::string expected) const;
  [[noreturn]] void failKey(const JsonValue& value, const std::string& key, std::string expected) const {
    fail(value.line, cat("unknown key \"", key, "\""), std::move(expected));
  }

 private:
  void require(const JsonValue& value, JsonValue::Kind kind) const;

  std::string what_;
};

}  // namespace abele::plan

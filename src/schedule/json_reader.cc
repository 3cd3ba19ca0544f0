#include "schedule/json_reader.h"

#include <algorithm>
#include <cmath>

#include "base/nearest.h"

namespace abele::schedule {
namespace {

constexpr double kLargest = 9e15;

[[noreturn]] void refuse(const std::string& what, std::string at, const std::string& found, std::string expected) {
  throwUser(ErrorCode::E0404,
            {.what = cat(what, " that cannot be read: ", found), .at = std::move(at), .expected = std::move(expected)});
}

/// "a number", "true", ...
std::string nameOf(const Json& value) {
  if (value.is_number()) return "a number";
  if (value.is_string()) return "a string";
  return value.is_array() ? "a list" : value.is_object() ? "an object" : value.dump();
}

}  // namespace

JsonText JsonReader::parsed(const std::string& what, const std::string& text) try {
  return JsonText(text);
} catch (const JsonFault& fault) {
  refuse(what, cat("line ", fault.line), fault.found, "JSON");
}

JsonReader::JsonReader(std::string what, const std::string& text)
    : what_(std::move(what)), text_(parsed(what_, text)) {}

void JsonReader::fail(const Json& value, const std::string& found, std::string expected) const {
  refuse(what_, text_.placeOf(value), found, std::move(expected));
}

void JsonReader::readMembers(const Json& object, const Members& members) const {
  readObject(object, [&](const std::string& key, const Json& value) {
    const auto own = std::ranges::find(members, key, &Members::value_type::first);
    if (own == members.end()) {
      std::vector<std::string> keys;
      for (const auto& [name, read] : members) keys.push_back(name);
      fail(value, cat("unknown key \"", key, "\""), oneOf(keys));
    }
    own->second(value);
  });
}

void JsonReader::require(const Json& value, bool fits, const char* expected) const {
  if (!fits) fail(value, nameOf(value), expected);
}

const std::string& JsonReader::readString(const Json& value) const {
  require(value, value.is_string(), "a string");
  return value.get_ref<const std::string&>();
}

int64_t JsonReader::readInteger(const Json& value) const {
  if (!value.is_number() || std::abs(value.get<double>()) > kLargest) fail(value, "not a number", "a number");
  return std::llround(value.get<double>());
}

bool JsonReader::readBool(const Json& value) const {
  require(value, value.is_boolean(), "true or false");
  return value.get<bool>();
}

}  // namespace abele::schedule

#include "plan/json_text.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string_view>

#include <nlohmann/json.hpp>

namespace abele::plan {
namespace {

constexpr size_t kDeepest = 32;
constexpr double kLargest = 9e15;

// Hands the text over letter by letter and remembers how far the parser is, which tells nobody else.
class Letters {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Letters(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  Letters& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  Letters operator++(int) {
    Letters before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Letters& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

// Makes the tree. The parser calls it behind every token, one letter further behind numbers.
class TreeMaker : public nlohmann::json_sax<nlohmann::json> {
 public:
  TreeMaker(const JsonReader& reader, const std::string& text)
      : reader_(reader), text_(text), reached_(text.data()), counted_(text.data()) {}

  const char** reached() { return &reached_; }
  JsonValue take() { return std::move(root_); }

  bool null() override { return word("null"); }
  bool boolean(bool value) override { return word(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return number(static_cast<double>(value)); }
  bool number_unsigned(number_unsigned_t value) override { return number(static_cast<double>(value)); }
  bool number_float(number_float_t value, const string_t&) override { return number(value); }
  bool string(string_t& value) override {
    JsonValue& v = add(JsonValue::Kind::kString);
    v.text = std::move(value);
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return open(JsonValue::Kind::kObject); }
  bool start_array(size_t) override { return open(JsonValue::Kind::kList); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    open_.back()->keys.push_back(std::move(name));
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    constexpr int kNumberTooLarge = 406;
    const std::string_view what = error.what();
    const bool at_end = reached_ == text_.data() + text_.size();
    if (error.id == kNumberTooLarge) reader_.fail(line(), "no number", "a number");
    if (is_complete_) reader_.fail(line(), "text behind the end", "the end of the file");
    if (what.find("missing closing quote") != what.npos) reader_.fail(line(), "a string that does not end", "\"");
    if (what.find("invalid string") != what.npos)
      reader_.fail(line(), "a string that is none", "UTF-8, and JSON's escapes");
    if (at_end && what.find("unexpected end of input") != what.npos)
      reader_.fail(line(), "the text ends", "more of it");
    if (text_.empty()) reader_.fail(line(), "the text ends", "JSON");
    reader_.fail(line(), cat("'", *(reached_ - 1), "' is no number, string, word, list or object in its place"),
                 "JSON");
  }

 private:
  int64_t line() {
    // The last letter may already be behind the token.
    const char* const end = reached_ == text_.data() ? reached_ : reached_ - 1;
    line_ += std::count(counted_, std::max(counted_, end), '\n');
    counted_ = std::max(counted_, end);
    return line_;
  }

  JsonValue& add(JsonValue::Kind kind) {
    JsonValue* value = &root_;
    if (!open_.empty()) value = &open_.back()->elements.emplace_back();
    value->kind = kind;
    value->line = line();
    is_complete_ = open_.empty();
    return *value;
  }
  bool word(const char* text) {
    add(JsonValue::Kind::kWord).text = text;
    return true;
  }
  bool number(double value) {
    add(JsonValue::Kind::kNumber).number = value;
    return true;
  }
  // Pointers to open values stay good: only the innermost one gets elements.
  bool open(JsonValue::Kind kind) {
    if (open_.size() == kDeepest) reader_.fail(line(), cat("more than ", kDeepest, " levels"), "fewer");
    JsonValue& value = add(kind);
    is_complete_ = false;
    open_.push_back(&value);
    return true;
  }
  bool close() {
    std::vector<std::string_view> keys(open_.back()->keys.begin(), open_.back()->keys.end());
    std::ranges::sort(keys);
    if (const auto twice = std::ranges::adjacent_find(keys); twice != keys.end())
      reader_.fail(line(), cat("\"", *twice, "\" twice in one object"), "one value of each name");
    open_.pop_back();
    is_complete_ = open_.empty();
    return true;
  }

  const JsonReader& reader_;
  const std::string& text_;
  const char* reached_;
  const char* counted_;
  int64_t line_ = 1;
  JsonValue root_;
  std::vector<JsonValue*> open_;
  bool is_complete_ = false;
};

const char* nameOf(JsonValue::Kind kind) {
  switch (kind) {
    case JsonValue::Kind::kNumber: return "a number";
    case JsonValue::Kind::kString: return "a string";
    case JsonValue::Kind::kList: return "'['";
    case JsonValue::Kind::kObject: return "'{'";
    case JsonValue::Kind::kWord: break;
  }
  return "true or false";
}

}  // namespace

JsonValue JsonReader::parse(const std::string& text) const {
  TreeMaker maker(*this, text);
  const Letters begin(text.data(), maker.reached()), end(text.data() + text.size(), maker.reached());
  nlohmann::json::sax_parse(begin, end, &maker);
  return maker.take();
}

int64_t JsonReader::readInteger(const JsonValue& value) const {
  const bool good = value.kind == JsonValue::Kind::kNumber && std::abs(value.number) <= kLargest;
  if (!good) fail(value.line, "no number", "a number");
  return std::llround(value.number);
}

bool JsonReader::readBool(const JsonValue& value) const {
  if (value.kind != JsonValue::Kind::kWord || value.text == "null")
    fail(value.line, value.kind == JsonValue::Kind::kWord ? "null" : nameOf(value.kind), "true or false");
  return value.text == "true";
}

void JsonReader::require(const JsonValue& value, JsonValue::Kind kind) const {
  if (value.kind != kind)
    fail(value.line, value.kind == JsonValue::Kind::kWord ? value.text : nameOf(value.kind), nameOf(kind));
}

void JsonReader::fail(int64_t line, std::string found, std::string expected) const {
  throwUser(
      ErrorCode::E0404,
      {.what = cat(what_, " that cannot be read: ", found), .at = cat("line ", line), .expected = std::move(expected)});
}

}  // namespace abele::plan

// Tokens, lines and mistakes for parsers of the text forms of graph, plan and executable. A parser reports all
// mistakes of a text together.
#pragma once

#include <charconv>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "base/error.h"

namespace abele::text {

/// Whether the text is letters, digits and underscores, and does not start with a digit.
inline bool isWord(std::string_view text) {
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) return false;
  for (char c : text)
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_')) return false;
  return true;
}
/// Whether the text is words joined by single dots.
inline bool isDottedWord(std::string_view text) {
  while (true) {
    size_t dot = text.find('.');
    if (!isWord(text.substr(0, dot))) return false;
    if (dot == std::string_view::npos) return true;
    text.remove_prefix(dot + 1);
  }
}

/// Thrown with the reason why a line cannot be read; forEachLine adds the number of the line.
struct Mistake {
  std::string text;
};
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Mistake{cat(parts...)};
}

inline bool isWordChar(char c) { return isWord(std::string_view(&c, 1)) || (c >= '0' && c <= '9'); }

/// Reads tokens of one line. Functions skip blanks first unless they say otherwise.
class Cursor {
 public:
  explicit Cursor(std::string_view line) : line_(line) {}

  bool atEnd() {
    skipBlanks();
    return at_ == line_.size();
  }
  bool peek(char c) {
    skipBlanks();
    return at_ < line_.size() && line_[at_] == c;
  }
  bool accept(char c) {
    if (!peek(c)) return false;
    ++at_;
    return true;
  }
  /// Accepts c only if it follows directly, without blanks.
  bool acceptAdjacent(char c) {
    if (at_ == line_.size() || line_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail("expected '", c, "' ", here());
  }
  bool acceptArrow() {
    skipBlanks();
    if (line_.substr(at_, 2) != "->") return false;
    at_ += 2;
    return true;
  }
  /// Accepts "key="; reads nothing if the text does not follow.
  bool acceptKey(std::string_view key) {
    skipBlanks();
    const bool is_there = line_.substr(at_, key.size()) == key && line_.substr(at_ + key.size(), 1) == "=";
    if (is_there) at_ += key.size() + 1;
    return is_there;
  }
  void expectKey(std::string_view key) {
    if (!acceptKey(key)) fail("expected ", key, "= ", here());
  }
  /// Accepts these characters in this order.
  bool acceptText(std::string_view text) {
    skipBlanks();
    if (line_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  void expectText(std::string_view text) {
    if (!acceptText(text)) fail("expected '", text, "' ", here());
  }
  /// The characters up to the next blank or one of `stops`; possibly empty.
  std::string_view until(std::string_view stops) {
    size_t start = (skipBlanks(), at_);
    while (at_ < line_.size() && line_[at_] != ' ' && line_[at_] != '\t' && line_[at_] != '\r' &&
           stops.find(line_[at_]) == std::string_view::npos)
      ++at_;
    return line_.substr(start, at_ - start);
  }
  void expectEnd() {
    if (!atEnd()) fail("unexpected text ", here());
  }
  /// The next word, without reading it; empty if no word follows.
  std::string_view peekWord() {
    skipBlanks();
    size_t end = at_;
    while (end < line_.size() && isWordChar(line_[end])) ++end;
    return line_.substr(at_, end - at_);
  }
  bool acceptWord(std::string_view word) {
    if (peekWord() != word) return false;
    at_ += word.size();
    return true;
  }
  std::string_view word(const char* what) {
    std::string_view found = peekWord();
    if (!isWord(found)) fail("expected ", what, " ", here());
    at_ += found.size();
    return found;
  }
  /// Reads words joined by dots.
  std::string_view dottedWord(const char* what) {
    size_t start = (skipBlanks(), at_);
    while (at_ < line_.size() && (isWordChar(line_[at_]) || line_[at_] == '.')) ++at_;
    std::string_view found = line_.substr(start, at_ - start);
    if (!isDottedWord(found)) {
      at_ = start;
      fail("expected ", what, " ", here());
    }
    return found;
  }
  int64_t integer() {
    skipBlanks();
    int64_t number = 0;
    auto [end, error] = std::from_chars(line_.data() + at_, line_.data() + line_.size(), number);
    if (error == std::errc::result_out_of_range) fail("number out of range ", here());
    if (error != std::errc()) fail("expected a number ", here());
    at_ = static_cast<size_t>(end - line_.data());
    return number;
  }
  /// Reads an integer from 0 to limit.
  int32_t index(int64_t limit = std::numeric_limits<int32_t>::max()) {
    std::string where = here();
    int64_t number = integer();
    if (number < 0 || number > limit) fail("index ", number, " out of range ", where);
    return static_cast<int32_t>(number);
  }
  /// Reads a number; *is_integer says whether it was an integer.
  double number(int64_t* integer_out, bool* is_integer) {
    size_t start = (skipBlanks(), at_);
    while (at_ < line_.size() && (isWordChar(line_[at_]) || line_[at_] == '.' || isSign(start))) ++at_;
    std::string_view text = line_.substr(start, at_ - start);
    *is_integer = !text.empty() && text.find_first_not_of("-0123456789") == std::string_view::npos;
    double value = 0;
    const char* last = text.data() + text.size();
    auto result =
        *is_integer ? std::from_chars(text.data(), last, *integer_out) : std::from_chars(text.data(), last, value);
    if (text.empty() || result.ec != std::errc() || result.ptr != last) {
      at_ = start;
      fail("expected a number ", here());
    }
    return *is_integer ? static_cast<double>(*integer_out) : value;
  }
  double real() {
    int64_t whole = 0;
    bool is_integer = false;
    return number(&whole, &is_integer);
  }
  std::string string() {
    expect('"');
    std::string out;
    while (at_ < line_.size() && line_[at_] != '"') {
      char c = line_[at_++];
      out += c == '\\' ? escaped() : c;
    }
    if (at_ == line_.size()) fail("a string without its closing quote");
    ++at_;
    return out;
  }
  std::string here() {
    skipBlanks();
    if (at_ == line_.size()) return "at the end of the line";
    return cat("at '", line_.substr(at_, 20), "'");
  }

 private:
  void skipBlanks() {
    while (at_ < line_.size() && (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r')) ++at_;
  }
  // A sign starts a number or follows the e of its exponent.
  bool isSign(size_t start) const {
    char c = line_[at_];
    return (c == '-' && at_ == start) || ((c == '-' || c == '+') && at_ > start && line_[at_ - 1] == 'e');
  }
  char escaped() {
    if (at_ == line_.size()) fail("a string without its closing quote");
    char c = line_[at_++];
    if (c == 'n') return '\n';
    if (c != 'x') return c;
    unsigned code = 0;
    if (at_ + 2 > line_.size()) fail("\\x needs two hexadecimal digits");
    auto [end, error] = std::from_chars(line_.data() + at_, line_.data() + at_ + 2, code, 16);
    if (error != std::errc() || end != line_.data() + at_ + 2) fail("\\x needs two hexadecimal digits");
    at_ += 2;
    return static_cast<char>(code);
  }

  std::string_view line_;
  size_t at_ = 0;
};

/// Everything before a # that is not inside a string.
inline std::string_view withoutComment(std::string_view line) {
  bool in_string = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (in_string && line[i] == '\\')
      ++i;
    else if (line[i] == '"')
      in_string = !in_string;
    else if (line[i] == '#' && !in_string)
      return line.substr(0, i);
  }
  return line;
}

/// The line of each mistake, and what is wrong there.
using Mistakes = std::vector<std::pair<int, std::string>>;

/// Calls parse(Cursor&) for every line; `line` counts them from 1. Skips a line with a mistake and collects the
/// mistake, so that one message shows all mistakes.
template <class Parse>
void forEachLine(std::string_view text, int& line, Mistakes& mistakes, Parse&& parse) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    Cursor cursor(withoutComment(text.substr(0, end)));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++line;
    try {
      parse(cursor);
    } catch (const Mistake& mistake) {
      mistakes.emplace_back(line, mistake.text);
    }
  }
}

/// Throws UserError with all mistakes in the order of their lines; does nothing without mistakes. of_what: "a graph".
/// expected: "the text form of docs/ir.md".
void refuseMistakes(Mistakes mistakes, ErrorCode code, std::string_view of_what, std::string expected);

}  // namespace abele::text

#include "options/reader.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "base/cat.h"

namespace abele::host {

void Reader::fail(const std::string& what) const { throw SyntaxError{cat(what, " at column ", position_ + 1)}; }

bool Reader::isNameStart(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool Reader::isDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

bool Reader::atEnd() {
  skipSpace();
  return position_ == text_.size() || (isPython() && peek() == '#');
}

void Reader::skipSpace() {
  while (position_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[position_]))) ++position_;
}

bool Reader::take(char c) {
  skipSpace();
  if (peek() != c || position_ == text_.size()) return false;
  ++position_;
  return true;
}

void Reader::expect(char c) {
  if (!take(c)) fail(cat("expected '", c, "'"));
}

bool Reader::isNextWord(const std::string& word) {
  skipSpace();
  const char next = peek(word.size());
  return text_.compare(position_, word.size(), word) == 0 && !isNameStart(next) && !isDigit(next);
}

bool Reader::takeWord(const std::string& word) {
  if (!isNextWord(word)) return false;
  position_ += word.size();
  return true;
}

void Reader::requireMore(char open) {
  if (atEnd()) fail(cat("'", open, "' was never closed"));
}

std::string Reader::name() {
  skipSpace();
  if (!isNameStart(peek())) fail("expected a name");
  const size_t begin = position_;
  while (isNameStart(peek()) || isDigit(peek())) ++position_;
  return text_.substr(begin, position_ - begin);
}

// Numbers ------------------------------------------------------------------------------------------------------------

OptionValue Reader::wholeNumber(const std::string& digits, int base) const {
  const char* first = digits.data();
  const char* last = first + digits.size();
  const auto all = [&](auto& number) {
    const auto [end, error] = std::from_chars(first, last, number, base);
    return error == std::errc() && end == last;
  };
  int64_t integer = 0;
  uint64_t large = 0;
  if (all(integer)) return OptionValue(integer);
  if (all(large)) return OptionValue(large);
  fail("invalid number");
}

OptionValue Reader::number() {
  const size_t begin = position_;
  if (peek() == '-') ++position_;
  const char mark = static_cast<char>(std::tolower(static_cast<unsigned char>(peek(1))));
  const int base = !isPython() || peek() != '0' ? 10 : mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
  bool is_float = false;
  while (std::isalnum(static_cast<unsigned char>(peek())) || (base == 10 && peek() == '.') || peek() == '_' ||
         (base == 10 && (peek() == '-' || peek() == '+') &&
          (text_[position_ - 1] == 'e' || text_[position_ - 1] == 'E'))) {
    is_float |= base == 10 && (peek() == '.' || peek() == 'e' || peek() == 'E');
    ++position_;
  }
  std::string digits = text_.substr(begin, position_ - begin);
  if (digits.find("__") != std::string::npos || digits.ends_with('_')) fail("invalid number");
  std::erase(digits, '_');
  if (base != 10) return wholeNumber(digits.substr(2), base);
  if (!is_float) {
    if (isPython() && digits[0] == '0' && digits.find_first_not_of('0') != std::string::npos) fail("invalid number");
    return wholeNumber(digits, 10);
  }
  double real = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), real);
  if (error != std::errc() || end != digits.data() + digits.size()) fail("invalid number");
  return OptionValue(real);
}

// Strings ------------------------------------------------------------------------------------------------------------

std::string Reader::string(bool raw) {
  const char quote = text_[position_++];
  std::string out;
  while (peek() != quote) {
    if (position_ >= text_.size()) fail("unterminated string");
    const char c = text_[position_++];
    if (c != '\\')
      out += c;
    else if (!raw)
      escape(out);
    else
      out += {c, text_[std::min(position_++, text_.size() - 1)]};
  }
  ++position_;
  return out;
}

void Reader::escape(std::string& out) {
  static const std::string letters = "ntrbf\"'\\/av0", bytes = "\n\t\r\b\f\"'\\/\a\v\0";
  const char c = peek();
  ++position_;
  const size_t found = letters.find(c);
  const bool known = found != std::string::npos && c != '\0' && (isPython() ? c != '/' : found < 9);
  if (c == 'u')
    out += codePoint(4);
  else if (isPython() && (c == 'x' || c == 'U'))
    out += codePoint(c == 'x' ? 2 : 8);
  else if (known)
    out += c == '0' ? '\0' : bytes[found];
  else
    fail("unknown escape");
}

uint32_t Reader::hexadecimal(size_t digits) {
  uint32_t code = 0;
  if (position_ + digits > text_.size()) fail("unknown escape");
  const char* begin = text_.data() + position_;
  if (std::from_chars(begin, begin + digits, code, 16).ptr != begin + digits) fail("unknown escape");
  position_ += digits;
  return code;
}

/// As UTF-8; two surrogates are one code point.
std::string Reader::codePoint(size_t digits) {
  uint32_t code = hexadecimal(digits);
  if (code >= 0xD800 && code < 0xDC00 && peek() == '\\' && peek(1) == 'u') {
    position_ += 2;
    const uint32_t low = hexadecimal(4);
    if (low < 0xDC00 || low > 0xDFFF) fail("half a pair of surrogates");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  if (code > 0x10FFFF) fail("unknown escape");
  if (code < 0x80) return {static_cast<char>(code)};
  std::string out;
  for (; code >= 0x40u >> out.size(); code >>= 6) out.insert(out.begin(), static_cast<char>(0x80 | (code & 63)));
  static constexpr std::array<uint8_t, 4> kFirst = {0, 0xC0, 0xE0, 0xF0};
  out.insert(out.begin(), static_cast<char>(kFirst[out.size()] | code));
  return out;
}

}  // namespace abele::host

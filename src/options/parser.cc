// Text of options: lines of configuration files, and JSON, which is a part of the same grammar.
// Source: spec options.md sections 7 and 8.
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <set>

#include "base/cat.h"
#include "options/expression.h"

namespace abele::host {
namespace {

enum class Language { kPython, kJson };

// Operators that bind alike, the loosest first.
constexpr std::array<std::array<const char*, 4>, 5> kOperators = {
    {{"|"}, {"&"}, {"<<", ">>"}, {"+", "-"}, {"//", "*", "/", "%"}}};

class Parser {
 public:
  Parser(const std::string& text, Language language) : text_(text), language_(language) {}

  Expression expression() { return language_ == Language::kJson ? primary() : binary(0); }

  std::vector<std::pair<std::string, Expression>> object() {
    std::vector<std::pair<std::string, Expression>> pairs;
    std::set<std::string> names;
    expect('{');
    while (!take('}')) {
      if (!pairs.empty()) expect(',');
      skipSpace();
      if (peek() != '"') fail("expected a name");
      std::string key = string();
      if (!names.insert(key).second) fail(cat("\"", key, "\" twice"));
      expect(':');
      pairs.emplace_back(std::move(key), expression());
    }
    end();
    return pairs;
  }

  std::vector<Statement> statements() {
    std::vector<Statement> all;
    do {
      if (atEnd()) break;
      Statement statement{.target = {}, .value = expression()};
      if (take('=')) {
        if (statement.value.kind != Expression::Kind::kAttribute) fail("only options have values to set");
        statement.target = std::move(statement.value);
        statement.value = expression();
      }
      all.push_back(std::move(statement));
    } while (take(';'));
    end();
    return all;
  }

  void end() {
    if (!atEnd()) fail("invalid syntax");
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw SyntaxError{cat(what, " at column ", position_ + 1)}; }
  static bool isNameStart(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
  static bool isDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
  char peek(size_t ahead = 0) const { return position_ + ahead < text_.size() ? text_[position_ + ahead] : '\0'; }
  bool atEnd() {
    skipSpace();
    return position_ == text_.size() || (language_ == Language::kPython && peek() == '#');
  }
  bool take(char c) {
    skipSpace();
    if (peek() != c || position_ == text_.size()) return false;
    ++position_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(cat("expected '", c, "'"));
  }
  void skipSpace() {
    while (position_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[position_]))) ++position_;
  }

  /// Bounds recursion: damaged text never exhausts the stack.
  struct Depth {
    explicit Depth(Parser& parser) : depth(parser.depth_) {
      if (++depth > 100) parser.fail("nested too deeply");
    }
    ~Depth() { --depth; }
    int& depth;
  };

  Expression binary(size_t level) {
    if (level == kOperators.size()) return unary();
    Expression left = binary(level + 1);
    while (const char* found = takeOperator(level)) {
      Expression right = binary(level + 1);
      left = {.kind = Expression::Kind::kBinary, .text = found, .parts = {std::move(left), std::move(right)}};
      if (++operators_ > 100) fail("too many operators");
    }
    return left;
  }

  const char* takeOperator(size_t level) {
    skipSpace();
    for (const char* each : kOperators[level]) {
      const std::string text = each == nullptr ? "" : each;
      if (text.empty() || text_.compare(position_, text.size(), text) != 0) continue;
      if (text == "*" && peek(1) == '*') continue;  // binds tighter
      position_ += text.size();
      return each;
    }
    return nullptr;
  }

  Expression unary() {
    skipSpace();
    for (const char* each : {"-", "+", "~", "not"}) {
      const std::string text = each;
      const char next = peek(text.size());
      if (text_.compare(position_, text.size(), text) != 0) continue;
      if (text == "not" && (isNameStart(next) || isDigit(next))) continue;
      position_ += text.size();
      const Depth depth(*this);
      return {.kind = Expression::Kind::kUnary, .text = text, .parts = {unary()}};
    }
    Expression base = postfix(primary());
    skipSpace();
    if (peek() != '*' || peek(1) != '*') return base;
    position_ += 2;
    const Depth depth(*this);
    return {.kind = Expression::Kind::kBinary, .text = "**", .parts = {std::move(base), unary()}};
  }

  Expression postfix(Expression value) {
    int steps = 0;
    while (true) {
      skipSpace();
      if (++steps > 100) fail("nested too deeply");
      if (peek() == '.' && !isDigit(peek(1))) {
        ++position_;
        std::string text = name();
        if (text.starts_with('_') && text != "_Popart") fail(cat(text, " is no option"));
        value = {.kind = Expression::Kind::kAttribute, .text = std::move(text), .parts = {std::move(value)}};
      } else if (peek() == '(') {
        value = call(std::move(value));
      } else {
        return value;
      }
    }
  }

  Expression call(Expression what) {
    const Depth depth(*this);
    ++position_;
    Expression result{.kind = Expression::Kind::kCall, .parts = {std::move(what)}};
    while (!take(')')) {
      requireMore('(');
      if (result.parts.size() > 1) {
        expect(',');
        if (take(')')) break;
      }
      skipSpace();
      const size_t begin = position_;
      if (isNameStart(peek())) {
        std::string word = name();
        if (take('=') && peek() != '=') {
          result.names.push_back(std::move(word));
          result.parts.push_back(expression());
          continue;
        }
        position_ = begin;
      }
      if (!result.names.empty()) fail("positional argument follows keyword argument");
      result.parts.push_back(expression());
    }
    return result;
  }

  void requireMore(char open) {
    if (atEnd()) fail(cat("'", open, "' was never closed"));
  }

  Expression primary() {
    skipSpace();
    const char c = peek();
    const bool python = language_ == Language::kPython;
    if (c == '[') return items('[', ']');
    if (c == '{') return braces();
    if (c == '"' || (c == '\'' && python)) return constant(OptionValue(strings()));
    if (isDigit(c) || (c == '-' && !python) || (c == '.' && isDigit(peek(1)) && python)) return constant(number());
    if (c == '(' && python) return parentheses();
    if (!isNameStart(c)) fail("invalid syntax");
    std::string text = name();
    if (text == (python ? "True" : "true")) return constant(OptionValue(true));
    if (text == (python ? "False" : "false")) return constant(OptionValue(false));
    if (text == (python ? "None" : "null")) return constant(OptionValue());
    if (!python) fail("expected a value");
    return {.kind = Expression::Kind::kName, .text = std::move(text)};
  }

  static Expression constant(OptionValue value) { return {.constant = std::move(value)}; }

  std::string name() {
    skipSpace();
    if (!isNameStart(peek())) fail("expected a name");
    const size_t begin = position_;
    while (isNameStart(peek()) || isDigit(peek())) ++position_;
    return text_.substr(begin, position_ - begin);
  }

  Expression items(char open, char close) {
    const Depth depth(*this);
    ++position_;
    Expression list{.kind = Expression::Kind::kList};
    while (!take(close)) {
      requireMore(open);
      if (!list.parts.empty()) expect(',');
      if (language_ == Language::kPython && take(close)) break;
      list.parts.push_back(expression());
    }
    return list;
  }

  /// A tuple, which is a list here, or one expression.
  Expression parentheses() {
    const size_t begin = position_;
    Expression list = items('(', ')');
    const std::string inside = text_.substr(begin, position_ - begin);
    const size_t last = inside.find_last_not_of(" \t", inside.size() - 2);
    const bool is_tuple = list.parts.size() != 1 || inside[last] == ',';
    return is_tuple ? list : Expression(list.parts[0]);
  }

  /// A map, or Python's set, which is a list here.
  Expression braces() {
    const Depth depth(*this);
    ++position_;
    if (take('}')) return {.kind = Expression::Kind::kMap};
    Expression result{.parts = {expression()}};
    const bool is_map = take(':');
    if (!is_map && language_ == Language::kJson) fail("expected ':'");
    result.kind = is_map ? Expression::Kind::kMap : Expression::Kind::kList;
    while (true) {
      if (is_map) result.parts.push_back(expression());
      if (take('}')) break;
      requireMore('{');
      expect(',');
      if (language_ == Language::kPython && take('}')) break;
      result.parts.push_back(expression());
      if (is_map) expect(':');
    }
    return result;
  }

  /// Python joins strings that follow each other.
  std::string strings() {
    std::string all = string();
    for (skipSpace(); language_ == Language::kPython && (peek() == '"' || peek() == '\''); skipSpace()) all += string();
    return all;
  }

  std::string string() {
    const char quote = text_[position_++];
    std::string out;
    while (peek() != quote) {
      if (position_ >= text_.size()) fail("unterminated string");
      const char c = text_[position_++];
      if (c == '\\')
        escape(out);
      else
        out += c;
    }
    ++position_;
    return out;
  }

  void escape(std::string& out) {
    static const std::string letters = "ntrbf\"'\\/av0", bytes = "\n\t\r\b\f\"'\\/\a\v\0";
    const char c = peek();
    ++position_;
    const size_t found = letters.find(c);
    const bool known = found != std::string::npos && c != '\0' && (language_ == Language::kPython || found < 9);
    if (c == 'u')
      out += codePoint(4);
    else if (language_ == Language::kPython && (c == 'x' || c == 'U'))
      out += codePoint(c == 'x' ? 2 : 8);
    else if (known)
      out += c == '0' ? '\0' : bytes[found];
    else
      fail("unknown escape");
  }

  uint32_t hexadecimal(size_t digits) {
    uint32_t code = 0;
    if (position_ + digits > text_.size()) fail("unknown escape");
    const char* begin = text_.data() + position_;
    if (std::from_chars(begin, begin + digits, code, 16).ptr != begin + digits) fail("unknown escape");
    position_ += digits;
    return code;
  }

  /// As UTF-8; two surrogates are one code point.
  std::string codePoint(size_t digits) {
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

  OptionValue number() {
    const size_t begin = position_;
    if (peek() == '-') ++position_;
    bool is_float = false;
    while (std::isalnum(static_cast<unsigned char>(peek())) || peek() == '.' || peek() == '_' ||
           ((peek() == '-' || peek() == '+') && (text_[position_ - 1] == 'e' || text_[position_ - 1] == 'E'))) {
      is_float |= peek() == '.' || peek() == 'e' || peek() == 'E';
      ++position_;
    }
    std::string digits = text_.substr(begin, position_ - begin);
    std::erase(digits, '_');
    const char* first = digits.data();
    const char* last = first + digits.size();
    const auto all = [&](auto& number) {
      const auto [end, error] = std::from_chars(first, last, number);
      return error == std::errc() && end == last;
    };
    int64_t integer = 0;
    uint64_t large = 0;
    double real = 0;
    if (!is_float && all(integer)) return OptionValue(integer);
    if (!is_float && all(large)) return OptionValue(large);
    if (is_float && all(real)) return OptionValue(real);
    fail("invalid number");
  }

  const std::string& text_;
  Language language_;
  size_t position_ = 0;
  int depth_ = 0;
  int operators_ = 0;
};

}  // namespace

std::vector<Statement> parseLine(const std::string& line) { return Parser(line, Language::kPython).statements(); }

Expression parseExpression(const std::string& text) {
  Parser parser(text, Language::kPython);
  Expression value = parser.expression();
  parser.end();
  return value;
}

std::vector<std::pair<std::string, Expression>> parseJsonObject(const std::string& text) {
  return Parser(text, Language::kJson).object();
}

}  // namespace abele::host

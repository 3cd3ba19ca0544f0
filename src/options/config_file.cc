// Lines of configuration files and the texts of strategies: calls of setters with literals, lists, maps, members of
// enumerations and strategies, as Python writes them. Source: spec options.md section 7.
#include <array>
#include <cctype>
#include <charconv>

#include "base/cat.h"
#include "options/objects.h"
#include "options/store.h"

namespace abele::options {
namespace {

using Named = std::vector<std::pair<std::string, OptionValue>>;

/// The place where a text breaks the grammar.
struct SyntaxError {
  std::string detail;
};

struct Statement {
  std::string group, name;  // group: empty for the options themselves
  bool is_assignment = false;
  OptionList arguments;
  Named named;
};

class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  /// The calls of a line, or its assignment.
  std::vector<Statement> line() {
    std::vector<Statement> all;
    std::vector<std::string> path = dottedName();
    const std::string group = path.size() == 2 ? path[0] : "";
    if (path.size() > 2) fail("a name of too many parts");
    Statement first{.group = group, .name = path.back()};
    if (take('=')) {
      first.is_assignment = true;
      first.arguments.push_back(value());
      end();
      return {first};
    }
    if (!take('(')) fail("no call of a setter");
    arguments(first.arguments, first.named);
    all.push_back(std::move(first));
    while (take('.')) {
      Statement next{.group = group, .name = name()};
      expect('(');
      arguments(next.arguments, next.named);
      all.push_back(std::move(next));
    }
    end();
    return all;
  }

  OptionValue onlyValue() {
    OptionValue result = value();
    end();
    return result;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw SyntaxError{cat(what, " at column ", position_ + 1)}; }

  // Characters -------------------------------------------------------------------------------------------------------

  static bool isNamePart(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
  char peek() const { return position_ < text_.size() ? text_[position_] : '\0'; }

  /// Returns true at the end of the text and at a comment.
  bool isAtEnd() {
    while (position_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[position_]))) ++position_;
    return position_ == text_.size() || text_[position_] == '#';
  }

  void end() {
    if (!isAtEnd()) fail("more than a literal, a member or a call");
  }

  bool take(char c) {
    if (isAtEnd() || text_[position_] != c) return false;
    ++position_;
    return true;
  }

  void expect(char c) {
    if (!take(c)) fail(cat("no '", c, "'"));
  }

  /// In a list that began with `open`: returns true if the list ends here, false if another item follows.
  bool isClosed(char open, char close, bool is_first) {
    if (take(close)) return true;
    if (isAtEnd()) fail(cat("'", open, "' was never closed"));
    if (is_first) return false;
    expect(',');
    return take(close);
  }

  std::string name() {
    if (isAtEnd() || !isNamePart(peek()) || std::isdigit(static_cast<unsigned char>(peek()))) fail("no name");
    const size_t begin = position_;
    while (isNamePart(peek())) ++position_;
    return text_.substr(begin, position_ - begin);
  }

  std::vector<std::string> dottedName() {
    std::vector<std::string> parts = {name()};
    while (take('.')) parts.push_back(name());
    return parts;
  }

  // Values -----------------------------------------------------------------------------------------------------------

  /// Limits the depth, so that damaged text cannot exhaust the stack.
  OptionValue value() {
    constexpr int kDeepest = 100;
    if (++depth_ > kDeepest) fail("nested too deeply");
    OptionValue result = anyValue();
    --depth_;
    return result;
  }

  OptionValue anyValue() {
    if (isAtEnd()) fail("no value");
    const char c = peek();
    if (c == '[') return items('[', ']');
    if (c == '(') return items('(', ')');
    if (c == '{') return map();
    if (c == '"' || c == '\'') return OptionValue(string());
    if (std::isdigit(static_cast<unsigned char>(c)) || c == '-' || c == '+' || c == '.') return number();
    return named();
  }

  OptionValue items(char open, char close) {
    expect(open);
    OptionList list;
    bool ends_with_comma = false;
    while (!isClosed(open, close, list.empty())) {
      list.push_back(value());
      ends_with_comma = isAtEnd() ? false : peek() == ',';
    }
    if (open == '(' && list.size() == 1 && !ends_with_comma) return list[0];
    return OptionValue(std::move(list));
  }

  OptionValue map() {
    expect('{');
    OptionMap pairs;
    while (!isClosed('{', '}', pairs.empty())) {
      if (peek() != '"' && peek() != '\'') fail("a name in a map that is no text");
      std::string key = string();
      expect(':');
      pairs.insert_or_assign(std::move(key), value());
    }
    return OptionValue(std::move(pairs));
  }

  /// A word, a member of an enumeration, or the object that a call makes.
  OptionValue named() {
    std::vector<std::string> path = dottedName();
    if (path.size() == 1 && path[0] == "None") return OptionValue();
    if (path.size() == 1 && (path[0] == "True" || path[0] == "False")) return OptionValue(path[0] == "True");
    if (path.size() == 2 && path[0] == "torch") return OptionValue(cat("torch.", path[1]));
    if (path[0] == "poptorch") path.erase(path.begin());
    if (path.size() > 1 && (path[0] == "enums" || path[0] == "options")) path.erase(path.begin());
    if (path.size() == 1 && take('(')) return object(path[0]);
    if (path.size() != 2) fail(cat("the name ", path.empty() ? "poptorch" : path.back()));
    return member(path[0], path[1]);
  }

  OptionValue object(const std::string& type) {
    OptionList given;
    Named by_name;
    arguments(given, by_name);
    if (!by_name.empty()) fail(cat(type, " takes no argument by name"));
    OptionObject made = makeObject(type, given);
    while (take('.')) {
      const std::string method = name();
      expect('(');
      given.clear();
      by_name.clear();
      arguments(given, by_name);
      callMethod(made, method, given, by_name);
    }
    return OptionValue(std::make_shared<const OptionObject>(std::move(made)));
  }

  /// Reads the arguments after "(".
  void arguments(OptionList& positional, Named& by_name) {
    while (!isClosed('(', ')', positional.empty() && by_name.empty())) {
      const size_t begin = position_;
      if (isNamePart(peek()) && !std::isdigit(static_cast<unsigned char>(peek()))) {
        std::string word = name();
        if (take('=')) {
          by_name.emplace_back(std::move(word), value());
          continue;
        }
        position_ = begin;
      }
      if (!by_name.empty()) fail("a positional argument behind one by name");
      positional.push_back(value());
    }
  }

  OptionValue number() {
    const size_t begin = position_;
    if (peek() == '-' || peek() == '+') ++position_;
    const size_t first = position_;
    while (isNamePart(peek()) || peek() == '.' ||
           ((peek() == '-' || peek() == '+') && position_ > first && std::tolower(text_[position_ - 1]) == 'e'))
      ++position_;
    const char* const from = text_.data() + (text_[begin] == '+' ? first : begin);
    const char* const to = text_.data() + position_;
    const auto is = [&](auto& number) {
      const auto [rest, error] = std::from_chars(from, to, number);
      return error == std::errc() && rest == to;
    };
    const std::string digits = text_.substr(first, position_ - first);
    int64_t integer = 0;
    uint64_t large = 0;
    double real = 0;
    const bool is_real = digits.find_first_of(".eE") != std::string::npos;
    const bool has_zeros = digits.size() > 1 && digits[0] == '0' && !is_real;  // Python refuses 007
    if (!has_zeros && is(integer)) return OptionValue(integer);
    if (!has_zeros && is(large)) return OptionValue(large);
    if (is_real && is(real)) return OptionValue(real);
    position_ = begin;
    fail("no number");
  }

  // Strings ----------------------------------------------------------------------------------------------------------

  std::string string() {
    const char quote = text_[position_++];
    std::string out;
    while (position_ < text_.size() && text_[position_] != quote) {
      const char c = text_[position_++];
      if (c == '\\')
        out += escaped();
      else
        out += c;
    }
    if (position_ == text_.size()) fail("a string that does not end");
    ++position_;
    return out;
  }

  /// Reads the rest of an escape after the backslash.
  std::string escaped() {
    constexpr std::array<std::pair<char, char>, 6> kLetters = {
        {{'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'"', '"'}, {'\'', '\''}, {'\\', '\\'}}};
    const char c = peek();
    ++position_;
    for (const auto& [letter, meant] : kLetters)
      if (c == letter) return {meant};
    if (c == 'x') return codePoint(2);
    if (c == 'u') return codePoint(4);
    if (c == 'U') return codePoint(8);
    fail("an escape that is none of \\n \\t \\r \\x \\u \\U");
  }

  /// Returns the code point in UTF-8.
  std::string codePoint(size_t digits) {
    uint32_t code = 0;
    const char* const begin = text_.data() + position_;
    const size_t left = text_.size() - std::min(position_, text_.size());
    if (left < digits || std::from_chars(begin, begin + digits, code, 16).ptr != begin + digits || code > 0x10FFFF)
      fail("an escape without its digits");
    position_ += digits;
    if (code < 0x80) return {static_cast<char>(code)};
    std::string out;
    for (; code >= 0x40u >> out.size(); code >>= 6) out.insert(out.begin(), static_cast<char>(0x80 | (code & 63)));
    constexpr std::array<uint8_t, 4> kFirst = {0, 0xC0, 0xE0, 0xF0};
    out.insert(out.begin(), static_cast<char>(kFirst[out.size()] | code));
    return out;
  }

  const std::string& text_;
  size_t position_ = 0;
  int depth_ = 0;
};

struct Line {
  std::string text, place;  // "line 3 of run.cfg"
};

/// Leaves out comments and blank lines.
std::vector<Line> linesOf(const std::string& text, const std::string& file_name) {
  constexpr const char* kSpace = " \t\r\f\v";
  std::vector<Line> lines;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    const size_t first = std::min(text.find_first_not_of(kSpace, begin), end);
    if (first == end || text[first] == '#') continue;
    const size_t last = text.find_last_not_of(kSpace, end - 1);
    lines.push_back({text.substr(first, last + 1 - first), cat("line ", lines.size() + 1, " of ", file_name)});
  }
  return lines;
}

std::vector<Statement> statementsOf(const Line& line) {
  try {
    return Reader(line.text).line();
  } catch (const SyntaxError& error) {
    throwUser(ErrorCode::E0702,
              {.what = cat(line.place, " cannot be read: ", error.detail),
               .expected = "a setter's call with numbers, text, lists, maps, members of enumerations and strategies, "
                           "such as deviceIterations(4); # begins a comment",
               .remedy = "calculate in the program, or load the file in Python, which evaluates such lines"});
  }
}

/// Adds the line to any error of `work`.
template <class Work>
void inLine(const Line& line, Work&& work) {
  try {
    work();
  } catch (Error& error) {
    error.addContext(cat(line.place, ": ", line.text));
    throw;
  }
}

}  // namespace

void applyConfigText(Options::Values& values, const std::string& text, const std::string& file_name) {
  const std::vector<Line> lines = linesOf(text, file_name);
  std::vector<std::vector<Statement>> statements;
  for (const Line& line : lines) inLine(line, [&] { statements.push_back(statementsOf(line)); });
  for (size_t i = 0; i < lines.size(); ++i)
    inLine(lines[i], [&] {
      for (Statement& each : statements[i])
        if (each.is_assignment)
          values.assign(each.group.empty() ? "Options" : each.group, each.name, std::move(each.arguments[0]));
        else
          values.call(each.group.empty() ? each.name : cat(each.group, ".", each.name), std::move(each.arguments),
                      std::move(each.named));
    });
}

OptionValue parseObject(const std::string& text) {
  try {
    return Reader(text).onlyValue();
  } catch (const SyntaxError& error) {
    throwUser(ErrorCode::E0702, {.what = cat("cannot read ", text, ": ", error.detail), .found = text});
  }
}

}  // namespace abele::options

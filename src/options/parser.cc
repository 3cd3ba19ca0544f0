// Text of options: lines of configuration files, and JSON, which is a part of the same grammar.
// Source: spec options.md sections 7 and 8.
#include <algorithm>
#include <array>
#include <set>

#include "base/cat.h"
#include "options/expression.h"
#include "options/reader.h"

namespace abele::host {
namespace {

using Kind = Expression::Kind;

// Operators that bind alike, the loosest first.
constexpr std::array<std::array<const char*, 4>, 6> kOperators = {
    {{"|"}, {"^"}, {"&"}, {"<<", ">>"}, {"+", "-"}, {"//", "*", "/", "%"}}};
constexpr std::array<const char*, 6> kComparisons = {"==", "!=", "<=", ">=", "<", ">"};

bool isKeyword(const std::string& word) {
  static const std::set<std::string> keywords = {
      "and",      "as",     "assert",  "async", "await", "break",  "class", "continue", "def",  "del",  "elif",
      "else",     "except", "finally", "for",   "from",  "global", "if",    "import",   "in",   "is",   "lambda",
      "nonlocal", "not",    "or",      "pass",  "raise", "return", "try",   "while",    "with", "yield"};
  return keywords.contains(word);
}

Expression constant(OptionValue value) { return {.constant = std::move(value)}; }

Expression pairOf(Kind kind, const std::string& text, Expression left, Expression right) {
  return {.kind = kind, .text = text, .parts = {std::move(left), std::move(right)}};
}

class Parser : private Reader {
 public:
  Parser(const std::string& text, TextLanguage language) : Reader(text, language) {}

  Expression expression() { return isPython() ? conditional() : primary(); }

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
      const std::string changed = changingOperator();
      if (!changed.empty() || take('=')) {
        if (statement.value.kind != Kind::kAttribute && statement.value.kind != Kind::kSubscript)
          fail("only options have values to set");
        statement.target = statement.value;
        Expression value = expression();
        statement.value = changed.empty()
                              ? std::move(value)
                              : pairOf(Kind::kBinary, changed, std::move(statement.value), std::move(value));
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
  // Operators, the loosest first -------------------------------------------------------------------------------------

  Expression conditional() {
    Expression value = logical("or");
    if (!takeWord("if")) return value;
    const Depth depth(*this);
    Expression condition = logical("or");
    if (!takeWord("else")) fail("expected 'else'");
    Expression otherwise = expression();
    return {.kind = Kind::kConditional, .parts = {std::move(condition), std::move(value), std::move(otherwise)}};
  }

  Expression logical(const std::string& word) {
    const auto next = [&] { return word == "or" ? logical("and") : inversion(); };
    Expression left = next();
    while (takeWord(word)) {
      countOperator();
      left = pairOf(Kind::kLogical, word, std::move(left), next());
    }
    return left;
  }

  Expression inversion() {
    if (!takeWord("not")) return comparison();
    const Depth depth(*this);
    return {.kind = Kind::kUnary, .text = "not", .parts = {inversion()}};
  }

  Expression comparison() {
    Expression left = binary(0);
    std::optional<Expression> chain;
    for (std::string op = comparing(); !op.empty(); op = comparing()) {
      countOperator();
      Expression right = binary(0);
      Expression compared = pairOf(Kind::kCompare, op, std::move(left), right);
      left = std::move(right);
      chain = chain ? pairOf(Kind::kLogical, "and", std::move(*chain), std::move(compared)) : std::move(compared);
    }
    return chain ? std::move(*chain) : left;
  }

  std::string comparing() {
    if (takeWord("in")) return "in";
    if (takeWord("is")) return takeWord("not") ? "is not" : "is";
    const size_t begin = position_;
    if (takeWord("not")) {
      if (takeWord("in")) return "not in";
      position_ = begin;
      return "";
    }
    skipSpace();
    for (const char* each : kComparisons) {
      const std::string text = each;
      if (text_.compare(position_, text.size(), text) != 0) continue;
      if (text.size() == 1 && peek(1) == text[0]) continue;  // a shift
      position_ += text.size();
      return text;
    }
    return "";
  }

  Expression binary(size_t level) {
    if (level == kOperators.size()) return unary();
    Expression left = binary(level + 1);
    while (const char* found = takeOperator(level)) {
      left = pairOf(Kind::kBinary, found, std::move(left), binary(level + 1));
      countOperator();
    }
    return left;
  }

  void countOperator() {
    if (++operators_ > 100) fail("too many operators");
  }

  const char* takeOperator(size_t level) {
    skipSpace();
    for (const char* each : kOperators[level]) {
      const std::string text = each == nullptr ? "" : each;
      if (text.empty() || text_.compare(position_, text.size(), text) != 0) continue;
      if (text == "*" && peek(1) == '*') continue;  // binds tighter
      if (peek(text.size()) == '=') continue;       // a statement
      if (text == "/" && peek(1) == '/') continue;  // "//="
      position_ += text.size();
      return each;
    }
    return nullptr;
  }

  /// Of "+=" its "+"; nothing where something else follows.
  std::string changingOperator() {
    skipSpace();
    for (const std::string text : {"**", "//", "<<", ">>", "+", "-", "*", "/", "%", "|", "&", "^"}) {
      if (text_.compare(position_, text.size(), text) != 0 || peek(text.size()) != '=') continue;
      position_ += text.size() + 1;
      return text;
    }
    return "";
  }

  Expression unary() {
    skipSpace();
    for (const char op : {'-', '+', '~'}) {
      if (peek() != op) continue;
      ++position_;
      const Depth depth(*this);
      return {.kind = Kind::kUnary, .text = {op}, .parts = {unary()}};
    }
    Expression base = postfix(primary());
    skipSpace();
    if (peek() != '*' || peek(1) != '*' || peek(2) == '=') return base;
    position_ += 2;
    const Depth depth(*this);
    return pairOf(Kind::kBinary, "**", std::move(base), unary());
  }

  // What follows a value ---------------------------------------------------------------------------------------------

  Expression postfix(Expression value) {
    int steps = 0;
    while (true) {
      skipSpace();
      if (++steps > 100) fail("nested too deeply");
      if (peek() == '.' && !isDigit(peek(1))) {
        ++position_;
        std::string text = name();
        if (isKeyword(text)) fail("invalid syntax");
        if (text.starts_with('_') && text != "_Popart") fail(cat(text, " is no option"));
        value = {.kind = Kind::kAttribute, .text = std::move(text), .parts = {std::move(value)}};
      } else if (peek() == '(') {
        value = call(std::move(value));
      } else if (peek() == '[' && isPython()) {
        value = subscript(std::move(value));
      } else {
        return value;
      }
    }
  }

  Expression call(Expression what) {
    const Depth depth(*this);
    ++position_;
    Expression result{.kind = Kind::kCall, .parts = {std::move(what)}};
    while (!take(')')) {
      requireMore('(');
      if (result.parts.size() > 1) {
        expect(',');
        if (take(')')) break;
      }
      argument(result);
    }
    return result;
  }

  void argument(Expression& result) {
    skipSpace();
    const size_t begin = position_;
    if (isNameStart(peek())) {
      std::string word = name();
      if (take('=') && peek() != '=') {
        result.names.push_back(std::move(word));
        result.parts.push_back(expression());
        return;
      }
      position_ = begin;
    }
    if (peek() == '*' && peek(1) == '*') {
      position_ += 2;
      result.names.emplace_back();
      result.parts.push_back({.kind = Kind::kSpread, .text = "**", .parts = {expression()}});
      return;
    }
    if (!result.names.empty()) fail("positional argument follows keyword argument");
    result.parts.push_back(item());
    if (isNextWord("for")) {
      if (result.parts.size() > 2) fail("a generator expression is the only argument, or has parentheses");
      result.parts.back() = comprehension("(", {std::move(result.parts.back())});
    }
  }

  Expression subscript(Expression what) {
    const Depth depth(*this);
    ++position_;
    const auto bound = [&] {
      skipSpace();
      return peek() == ':' || peek() == ']' ? constant(OptionValue()) : expression();
    };
    Expression begin = bound();
    if (take(':')) {
      Expression end = bound();
      Expression step = take(':') ? bound() : constant(OptionValue());
      begin = {.kind = Kind::kSlice, .parts = {std::move(begin), std::move(end), std::move(step)}};
    } else if (begin.kind == Kind::kConstant && begin.constant.isNone()) {
      fail("invalid index");
    }
    expect(']');
    return pairOf(Kind::kSubscript, "", std::move(what), std::move(begin));
  }

  // Values -----------------------------------------------------------------------------------------------------------

  Expression primary() {
    skipSpace();
    const char c = peek();
    if (c == '[') return items('[', ']', Kind::kList);
    if (c == '{') return braces();
    if (c == '"' || (c == '\'' && isPython())) return strings();
    if (isDigit(c) || (c == '-' && !isPython()) || (c == '.' && isDigit(peek(1)) && isPython()))
      return constant(number());
    if (c == '(' && isPython()) return parentheses();
    if (!isNameStart(c)) fail("invalid syntax");
    if (isPython() && prefix()) return strings();
    std::string text = name();
    if (text == (isPython() ? "True" : "true")) return constant(OptionValue(true));
    if (text == (isPython() ? "False" : "false")) return constant(OptionValue(false));
    if (text == (isPython() ? "None" : "null")) return constant(OptionValue());
    if (!isPython()) fail("expected a value");
    if (text == "lambda") fail("lambda: a configuration file makes no functions");
    if (isKeyword(text)) fail("invalid syntax");
    return {.kind = Kind::kName, .text = std::move(text)};
  }

  /// An item of a display or an argument: an expression, or one that is spread out.
  Expression item() {
    skipSpace();
    if (!isPython() || peek() != '*' || peek(1) == '*') return expression();
    ++position_;
    return {.kind = Kind::kSpread, .text = "*", .parts = {expression()}};
  }

  Expression items(char open, char close, Kind kind) {
    const Depth depth(*this);
    ++position_;
    Expression list{.kind = kind};
    while (!take(close)) {
      requireMore(open);
      if (!list.parts.empty()) expect(',');
      if (isPython() && take(close)) {
        ends_with_comma_ = true;
        return list;
      }
      list.parts.push_back(item());
      if (isPython() && list.parts.size() == 1 && isNextWord("for")) {
        list = comprehension({open}, std::move(list.parts));
        expect(close);
        break;
      }
    }
    ends_with_comma_ = false;
    return list;
  }

  /// A tuple, a generator, or one expression.
  Expression parentheses() {
    Expression list = items('(', ')', Kind::kTuple);
    const bool is_one = list.kind == Kind::kTuple && list.parts.size() == 1 && !ends_with_comma_;
    if (is_one && list.parts[0].kind == Kind::kSpread) fail("invalid syntax");
    return is_one ? Expression(list.parts[0]) : list;
  }

  /// A map or a set.
  Expression braces() {
    const Depth depth(*this);
    ++position_;
    Expression result{.kind = Kind::kMap};
    for (bool is_first = true; !take('}'); is_first = false) {
      requireMore('{');
      if (!is_first) {
        expect(',');
        if (isPython() && take('}')) break;
      }
      skipSpace();
      if (isPython() && result.kind == Kind::kMap && peek() == '*' && peek(1) == '*') {
        position_ += 2;
        result.parts.push_back({.kind = Kind::kSpread, .text = "**", .parts = {expression()}});
        result.parts.push_back({});
        continue;
      }
      Expression one = is_first || result.kind == Kind::kSet ? item() : expression();
      if (isPython() && is_first && (one.kind == Kind::kSpread || !isNext(':'))) result.kind = Kind::kSet;
      result.parts.push_back(std::move(one));
      if (result.kind == Kind::kMap) {
        expect(':');
        result.parts.push_back(expression());
      }
      if (isPython() && is_first && isNextWord("for")) {
        result = comprehension(result.kind == Kind::kMap ? ":" : "{", std::move(result.parts));
        expect('}');
        break;
      }
    }
    return result;
  }

  bool isNext(char c) {
    skipSpace();
    return peek() == c;
  }

  Expression comprehension(const std::string& text, std::vector<Expression> element) {
    const Depth depth(*this);
    if (element[0].kind == Kind::kSpread) fail("invalid syntax");
    Expression result{.kind = Kind::kComprehension, .text = text, .parts = std::move(element)};
    while (takeWord("for")) {
      Expression clause{.kind = Kind::kClause};
      const bool enclosed = take('(');
      do clause.names.push_back(name());
      while (take(','));
      if (std::ranges::any_of(clause.names, isKeyword)) fail("invalid syntax");
      if (enclosed) expect(')');
      clause.text = clause.names.size() > 1 ? "," : "";
      if (!takeWord("in")) fail("expected 'in'");
      clause.parts.push_back(logical("or"));
      while (takeWord("if")) clause.parts.push_back(logical("or"));
      result.parts.push_back(std::move(clause));
      countOperator();
    }
    return result;
  }

  // Strings ----------------------------------------------------------------------------------------------------------

  /// Do letters stand in front of a string, as in f"..."?
  bool prefix() const {
    size_t length = 0;
    while (isNameStart(peek(length)) && length < 3) ++length;
    const char quote = peek(length);
    if (length == 3 || (quote != '"' && quote != '\'') || isKeyword(text_.substr(position_, length))) return false;
    for (size_t i = 0; i < length; ++i)
      if (std::string("rRfFuU").find(peek(i)) == std::string::npos) fail("strings of bytes are no part of options");
    return true;
  }

  /// Python joins strings that follow each other.
  Expression strings() {
    Expression all{.kind = Kind::kJoined};
    do {
      bool raw = false, has_fields = false;
      for (; peek() != '"' && peek() != '\''; ++position_) {
        raw = raw || peek() == 'r' || peek() == 'R';
        has_fields = has_fields || peek() == 'f' || peek() == 'F';
      }
      if (!has_fields) {
        addText(all, string(raw));
        continue;
      }
      const char quote = text_[position_++];
      fields(all, quote, raw);
      ++position_;
    } while (isPython() && isString());
    if (all.parts.empty()) return constant(OptionValue(""));
    return all.parts.size() == 1 && all.parts[0].kind == Kind::kConstant ? Expression(all.parts[0]) : all;
  }

  bool isString() {
    skipSpace();
    return peek() == '"' || peek() == '\'' || (isNameStart(peek()) && prefix());
  }

  static void addText(Expression& joined, const std::string& text) {
    if (text.empty()) return;
    if (joined.parts.empty() || joined.parts.back().kind != Kind::kConstant)
      joined.parts.push_back(constant(OptionValue(text)));
    else
      joined.parts.back().constant = OptionValue(*joined.parts.back().constant.as<std::string>() + text);
  }

  /// Texts and fields up to the quote, or of a format (quote: '}') up to its end.
  void fields(Expression& joined, char quote, bool raw) {
    while (peek() != quote) {
      if (position_ >= text_.size()) fail("unterminated string");
      const char c = text_[position_++];
      std::string text;
      if ((c == '{' || c == '}') && peek() == c && quote != '}')
        text = text_[position_++];
      else if (c == '{') {
        joined.parts.push_back(field());
        continue;
      } else if (c == '}')
        fail("single '}' in an f-string");
      else if (c == '\\' && !raw)
        escape(text);
      else
        text = c;
      addText(joined, text);
    }
  }

  /// Behind its "{".
  Expression field() {
    const Depth depth(*this);
    Expression result{.kind = Kind::kField, .parts = {expression()}};
    Expression format{.kind = Kind::kJoined};
    if (take('!')) result.text = name();
    if (!result.text.empty() && result.text != "s" && result.text != "r") fail("unknown conversion");
    if (take(':')) fields(format, '}', /*raw=*/true);
    expect('}');
    result.parts.push_back(std::move(format));
    return result;
  }

  int operators_ = 0;
  bool ends_with_comma_ = false;  // the items that were read last
};

}  // namespace

std::vector<Statement> parseLine(const std::string& line) { return Parser(line, TextLanguage::kPython).statements(); }

Expression parseExpression(const std::string& text) {
  Parser parser(text, TextLanguage::kPython);
  Expression value = parser.expression();
  parser.end();
  return value;
}

std::vector<std::pair<std::string, Expression>> parseJsonObject(const std::string& text) {
  return Parser(text, TextLanguage::kJson).object();
}

}  // namespace abele::host

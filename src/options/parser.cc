// Options from text: configuration files, JSON, and the calls that build strategies and location settings.
// Source: spec options.md sections 7 and 8. Grammar: Python's literals, members and calls; JSON is a part of it.
#include <algorithm>
#include <cctype>
#include <charconv>

#include "options/objects.h"
#include "options/store.h"

namespace abele::host {
namespace {

/// Where text stops making sense.
struct SyntaxError {
  std::string detail;
};

enum class Language { kPython, kJson };

/// One name, call or assignment of a statement: .Training .gradientAccumulation(4)
struct Step {
  std::string name;
  bool is_call = false;
  std::vector<OptionValue> arguments;
  std::vector<std::pair<std::string, OptionValue>> named;
};
struct Statement {
  std::vector<Step> steps;
  std::optional<OptionValue> assigned;
};

class Parser {
 public:
  Parser(const std::string& text, Language language) : text_(text), language_(language) {}

  OptionValue value() {
    skipSpace();
    const char c = peek();
    if (c == '[') return OptionValue(items(']'));
    if (c == '{') return braces();
    if (c == '"' || (c == '\'' && language_ == Language::kPython)) return OptionValue(string());
    if (c == '-' || c == '+' || std::isdigit(static_cast<unsigned char>(c))) return number();
    if (c == '(' && language_ == Language::kPython) return tuple();
    if (isNameStart(c)) return named();
    fail("invalid syntax");
  }

  /// The whole text as a JSON object, in its order.
  std::vector<std::pair<std::string, OptionValue>> object() {
    std::vector<std::pair<std::string, OptionValue>> pairs;
    expect('{');
    while (!take('}')) {
      if (!pairs.empty()) expect(',');
      skipSpace();
      if (peek() != '"') fail("expected a name");
      std::string key = string();
      expect(':');
      pairs.emplace_back(std::move(key), value());
    }
    end();
    return pairs;
  }

  /// Text of one line without the "options." in front.
  Statement statement() {
    Statement result;
    do {
      Step step{.name = name()};
      skipSpace();
      if (peek() == '(') {
        step.is_call = true;
        callArguments(step);
      }
      result.steps.push_back(std::move(step));
      skipSpace();
    } while (take('.'));
    if (take('=')) result.assigned = value();
    end();
    return result;
  }

  void end() {
    skipSpace();
    if (position_ != text_.size() && !(language_ == Language::kPython && peek() == '#')) fail("invalid syntax");
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw SyntaxError{cat(what, " at column ", position_ + 1)}; }
  static bool isNameStart(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
  char peek() const { return position_ < text_.size() ? text_[position_] : '\0'; }
  bool take(char c) {
    skipSpace();
    if (peek() != c) return false;
    ++position_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(cat("expected '", c, "'"));
  }
  void skipSpace() {
    while (position_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[position_]))) ++position_;
  }

  std::string name() {
    skipSpace();
    if (!isNameStart(peek())) fail("expected a name");
    const size_t begin = position_;
    while (isNameStart(peek()) || std::isdigit(static_cast<unsigned char>(peek()))) ++position_;
    return text_.substr(begin, position_ - begin);
  }

  OptionList items(char close) {
    OptionList list;
    const Depth depth(*this);
    ++position_;
    while (!take(close)) {
      if (!list.empty()) expect(',');
      if (language_ == Language::kPython && take(close)) break;
      list.push_back(value());
    }
    return list;
  }

  OptionValue tuple() {
    const Depth depth(*this);
    ++position_;
    OptionList list;
    bool comma = false;
    while (!take(')')) {
      if (!list.empty()) {
        expect(',');
        comma = true;
      }
      if (take(')')) break;
      list.push_back(value());
    }
    return list.size() == 1 && !comma ? list[0] : OptionValue(std::move(list));
  }

  /// A map, or Python's set, which is a list here.
  OptionValue braces() {
    const Depth depth(*this);
    ++position_;
    if (take('}')) return OptionValue(OptionMap());
    OptionValue key = value();
    const bool is_map = take(':');
    if (!is_map && language_ == Language::kJson) fail("expected ':'");
    OptionMap map;
    OptionList set;
    while (true) {
      if (is_map) {
        const std::string* text = key.as<std::string>();
        if (!text) fail("a name of a map must be a string");
        map[*text] = value();
      } else {
        set.push_back(std::move(key));
      }
      if (take('}')) break;
      expect(',');
      if (language_ == Language::kPython && take('}')) break;
      key = value();
      if (is_map) expect(':');
    }
    return is_map ? OptionValue(std::move(map)) : OptionValue(std::move(set));
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
    const char c = peek();
    ++position_;
    switch (c) {
      case 'n': out += '\n'; return;
      case 't': out += '\t'; return;
      case 'r': out += '\r'; return;
      case 'b': out += '\b'; return;
      case 'f': out += '\f'; return;
      case 'u': out += codePoint(); return;
      case '"':
      case '\'':
      case '\\':
      case '/': out += c; return;
      default: fail("unknown escape");
    }
  }

  /// Four hexadecimal digits as UTF-8. Pairs of surrogates are not joined.
  std::string codePoint() {
    unsigned code = 0;
    if (position_ + 4 > text_.size()) fail("unknown escape");
    const char* begin = text_.data() + position_;
    if (std::from_chars(begin, begin + 4, code, 16).ptr != begin + 4) fail("unknown escape");
    position_ += 4;
    if (code < 0x80) return {static_cast<char>(code)};
    if (code < 0x800) return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 63))};
    return {static_cast<char>(0xE0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 63)),
            static_cast<char>(0x80 | (code & 63))};
  }

  OptionValue number() {
    const size_t begin = position_;
    if (peek() == '-' || peek() == '+') ++position_;
    bool is_float = false;
    while (std::isalnum(static_cast<unsigned char>(peek())) || peek() == '.' || peek() == '_' ||
           ((peek() == '-' || peek() == '+') && (text_[position_ - 1] == 'e' || text_[position_ - 1] == 'E'))) {
      is_float |= peek() == '.' || peek() == 'e' || peek() == 'E';
      ++position_;
    }
    std::string digits = text_.substr(begin, position_ - begin);
    if (digits.starts_with('+')) digits.erase(0, 1);
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
    if (all(real)) return OptionValue(real);
    fail("invalid number");
  }

  void callArguments(Step& step) {
    const Depth depth(*this);
    ++position_;
    bool first = true;
    while (!take(')')) {
      if (!first) expect(',');
      if (take(')')) break;
      first = false;
      skipSpace();
      const size_t begin = position_;
      if (isNameStart(peek())) {
        const std::string word = name();
        if (take('=') && peek() != '=') {
          step.named.emplace_back(word, value());
          continue;
        }
        position_ = begin;
      }
      step.arguments.push_back(value());
    }
  }

  /// True, poptorch.OutputMode.All, poptorch.Stage("a").ipu(1)
  OptionValue named() {
    std::vector<std::string> path = {name()};
    if (path[0] == "true" || path[0] == "True") return OptionValue(true);
    if (path[0] == "false" || path[0] == "False") return OptionValue(false);
    if (path[0] == "null" || path[0] == "None") return OptionValue();
    if (language_ == Language::kJson) fail("expected a value");
    while (take('.')) path.push_back(name());
    const bool of_torch = path[0] == "torch";
    for (const char* module : {"poptorch", "enums", "options"})
      if (path.size() > 1 && path[0] == module) path.erase(path.begin());
    skipSpace();
    if (peek() == '(' && path.size() == 1) return build(path[0]);
    if (of_torch && path.size() == 2) return OptionValue(cat("torch.", path[1]));
    if (path.size() != 2) fail(cat("unknown name ", path[0]));
    return member(path[0], path[1]);
  }

  OptionValue build(const std::string& type) {
    Step step{.name = type, .is_call = true};
    callArguments(step);
    OptionObject object = makeObject(type, step.arguments);
    while (take('.')) {
      Step method{.name = name(), .is_call = true};
      skipSpace();
      if (peek() != '(') fail("expected a call");
      callArguments(method);
      callMethod(object, method.name, method.arguments, method.named);
    }
    return OptionValue(std::make_shared<const OptionObject>(std::move(object)));
  }

  /// Bounds recursion: damaged text never exhausts the stack.
  struct Depth {
    explicit Depth(Parser& parser) : depth(parser.depth_) {
      if (++depth > 100) parser.fail("nested too deeply");
    }
    ~Depth() { --depth; }
    int& depth;
  };

  const std::string& text_;
  Language language_;
  size_t position_ = 0;
  int depth_ = 0;
};

std::string trimmed(const std::string& line) {
  const auto begin = line.find_first_not_of(" \t\r\f\v");
  return begin == std::string::npos ? "" : line.substr(begin, line.find_last_not_of(" \t\r\f\v") - begin + 1);
}

bool isGroup(const std::string& name) {
  static const std::vector<std::string> groups = {"Training", "Precision",   "Jit",
                                                  "_Popart",  "Distributed", "TensorLocations"};
  return std::find(groups.begin(), groups.end(), name) != groups.end();
}

std::string joinPath(const std::string& group, const std::string& name) {
  return group.empty() ? name : cat(group, ".", name);
}

void apply(Options::Values& values, const Statement& statement) {
  std::string group;
  for (const Step& step : statement.steps) {
    const bool last = &step == &statement.steps.back();
    if (step.is_call)
      values.call(joinPath(group, step.name), step.arguments, step.named);
    else if (last && statement.assigned)
      values.assign(group.empty() ? "Options" : group, step.name, *statement.assigned);
    else
      ABELE_REQUIRE(!last && group.empty() && isGroup(step.name), E0701,
                    {.what = cat(joinPath(group, step.name), " is no setter"),
                     .expected = "a call such as deviceIterations(4)",
                     .remedy = "docs/options.md lists all setters"});
    if (!step.is_call && !last) group = step.name;
  }
}

/// The places where JSON may add several values at once, as Python's dicts have them.
bool applyUpdate(Options::Values& values, const std::string& path, const OptionValue& value) {
  const OptionMap* map = value.as<OptionMap>();
  if (path == "_Popart.options.update" && map) {
    for (const auto& [name, setting] : *map) values.call("_Popart.set", {OptionValue(name), setting});
    return true;
  }
  if (path == "anchored_tensors.update" && map) {
    for (const auto& [name, entry] : *map) {
      const OptionList* parts = entry.as<OptionList>();
      ABELE_REQUIRE(parts && parts->size() == 4 && (*parts)[1].as<bool>() && (*parts)[2].as<int64_t>(), E0702,
                    {.what = cat("anchored tensor ", name, " is ", entry.text()),
                     .expected = "[long name, as the model, output mode, period]"});
      const bool as_model = *(*parts)[1].as<bool>();
      const OptionValue mode = as_model ? OptionValue() : member("OutputMode", *(*parts)[2].as<int64_t>());
      values.call("anchorTensor", {OptionValue(name), (*parts)[0], mode, (*parts)[3]});
    }
    return true;
  }
  return false;
}

[[noreturn]] void refuseText(const std::string& what, const std::string& detail) {
  throwUser(ErrorCode::E0702, {.what = what, .found = detail});
}

}  // namespace

void applyConfigText(Options::Values& values, const std::string& text, const std::string& file_name) {
  std::vector<std::pair<std::string, Statement>> statements;
  size_t begin = 0;
  int number = 0;
  while (begin < text.size()) {
    size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    const std::string line = trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    if (line.empty() || line[0] == '#') continue;
    ++number;
    try {
      statements.emplace_back(line, Parser(line, Language::kPython).statement());
    } catch (const SyntaxError& error) {
      refuseText(cat("SyntaxError at line ", number, " of ", file_name, ": ", error.detail, "\n> options.", line),
                 cat("options.", line));
    }
  }
  for (const auto& [line, statement] : statements) try {
      apply(values, statement);
    } catch (Error& error) {
      error.addContext(cat("options.", line, " of ", file_name));
      throw;
    }
}

void applyJson(Options::Values& values, const std::string& text) {
  std::vector<std::pair<std::string, OptionValue>> table;
  try {
    table = Parser(text, Language::kJson).object();
  } catch (const SyntaxError& error) {
    throwUser(ErrorCode::E0702, {.what = cat("options are no JSON object: ", error.detail),
                                 .found = text,
                                 .expected = "{\"dotted.setter\": arguments}"});
  }
  for (const auto& [path, value] : table) {
    if (applyUpdate(values, path, value)) continue;
    std::vector<OptionValue> arguments =
        value.as<OptionList>() ? *value.as<OptionList>() : std::vector<OptionValue>{value};
    for (OptionValue& argument : arguments)
      if (const std::string* name = argument.as<std::string>())
        if (std::optional<OptionValue> found = memberNamed(*name)) argument = *found;
    values.call(path, std::move(arguments));
  }
}

OptionValue parseObject(const std::string& text) {
  try {
    Parser parser(text, Language::kPython);
    OptionValue value = parser.value();
    parser.end();
    return value;
  } catch (const SyntaxError& error) {
    refuseText(cat("cannot read ", text, ": ", error.detail), text);
  }
}

}  // namespace abele::host

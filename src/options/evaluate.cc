// What texts of options do: expressions are evaluated, and setters called. No code of the text's own ever runs.
// Source: spec options.md sections 7 and 8.
#include <algorithm>
#include <cmath>

#include "base/nearest.h"
#include "options/expression.h"
#include "options/objects.h"
#include "options/store.h"

namespace abele::host {
namespace {

using Named = std::vector<std::pair<std::string, OptionValue>>;

constexpr int64_t kLargestShift = 64;  // of << and **: a number of the file, not the memory of the machine

/// The options, or one group of them. values: of the text's own Options(); nullptr: the target's.
struct View {
  std::shared_ptr<Options::Values> values;
  std::string group;  // empty: all
};
/// A name that something follows: poptorch, torch, or an enumeration.
struct Scope {
  std::string name;
};
using Thing = std::variant<OptionValue, View, Scope>;

[[noreturn]] void refuse(ErrorCode code, const std::string& what, const char* builtin) {
  throw OptionError(code, {.what = what}, builtin);
}

bool isGroup(const std::string& name) {
  static const std::vector<std::string> groups = {"Training", "Precision",   "Jit",
                                                  "_Popart",  "Distributed", "TensorLocations"};
  return std::find(groups.begin(), groups.end(), name) != groups.end();
}

bool isEnum(const std::string& name) {
  const auto& all = optionEnums();
  return std::any_of(all.begin(), all.end(), [&](const OptionEnum& each) { return each.name == name; });
}

bool isObject(const std::string& name) {
  static const std::vector<std::string> objects = {"Stage",
                                                   "Phase",
                                                   "PipelinedExecution",
                                                   "ShardedExecution",
                                                   "SerialPhasedExecution",
                                                   "ParallelPhasedExecution",
                                                   "TensorLocationSettings"};
  return std::find(objects.begin(), objects.end(), name) != objects.end();
}

std::string joinPath(const std::string& group, const std::string& name) {
  return group.empty() ? name : cat(group, ".", name);
}

// Arithmetic ---------------------------------------------------------------------------------------------------------

bool isWhole(const OptionValue& value) { return value.as<bool>() || value.as<int64_t>(); }

double realOf(const OptionValue& value) {
  if (value.as<double>()) return *value.as<double>();
  if (value.as<uint64_t>()) return static_cast<double>(*value.as<uint64_t>());
  return static_cast<double>(*integer<int64_t>(value));
}

[[noreturn]] void tooLarge(const std::string& text) {
  refuse(ErrorCode::E0702, cat("the result of ", text, " is too large"), "ValueError");
}

int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i)
    if (__builtin_mul_overflow(result, base, &result)) tooLarge("**");
  return result;
}

int64_t floorDivide(int64_t a, int64_t b) {
  if (b == -1 && a == std::numeric_limits<int64_t>::min()) tooLarge("//");
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

OptionValue wholeResult(const std::string& op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "+" && !__builtin_add_overflow(a, b, &result)) return OptionValue(result);
  if (op == "-" && !__builtin_sub_overflow(a, b, &result)) return OptionValue(result);
  if (op == "*" && !__builtin_mul_overflow(a, b, &result)) return OptionValue(result);
  if (op == "//") return OptionValue(floorDivide(a, b));
  if (op == "%") return OptionValue(b == -1 ? int64_t{0} : a - floorDivide(a, b) * b);
  if (op == "|") return OptionValue(a | b);
  if (op == "&") return OptionValue(a & b);
  if (op == "**") return OptionValue(power(a, b));
  if ((op == "<<" || op == ">>") && b < 0) refuse(ErrorCode::E0702, "negative shift count", "ValueError");
  if (op == ">>") return OptionValue(a >> std::min<int64_t>(b, 63));
  if (op == "<<" && !__builtin_mul_overflow(a, power(2, b), &result)) return OptionValue(result);
  tooLarge(op);
}

OptionValue realResult(const std::string& op, double a, double b) {
  if (op == "+") return OptionValue(a + b);
  if (op == "-") return OptionValue(a - b);
  if (op == "*") return OptionValue(a * b);
  if (op == "/") return OptionValue(a / b);
  if (op == "//") return OptionValue(std::floor(a / b));
  if (op == "%") return OptionValue(a - std::floor(a / b) * b);
  if (op == "**") return OptionValue(std::pow(a, b));
  refuse(ErrorCode::E0702, cat(op, " of numbers that are not whole"), "TypeError");
}

OptionValue binary(const std::string& op, const OptionValue& a, const OptionValue& b) {
  if (op == "+" && a.as<std::string>() && b.as<std::string>())
    return OptionValue(*a.as<std::string>() + *b.as<std::string>());
  for (const OptionValue* side : {&a, &b})
    if (!isWhole(*side) && !side->as<uint64_t>() && !side->as<double>())
      refuse(ErrorCode::E0702, cat("arithmetic with ", side->text()), "TypeError");
  if ((op == "<<" || op == "**") && std::abs(realOf(b)) > kLargestShift) tooLarge(op);
  if ((op == "/" || op == "//" || op == "%") && realOf(b) == 0)
    refuse(ErrorCode::E0702, "division by zero", "ZeroDivisionError");
  const bool whole = isWhole(a) && isWhole(b) && op != "/" && !(op == "**" && realOf(b) < 0);
  if (!whole) return realResult(op, realOf(a), realOf(b));
  return wholeResult(op, *integer<int64_t>(a), *integer<int64_t>(b));
}

OptionValue unary(const std::string& op, const OptionValue& value) {
  if (op == "not") {
    const bool empty = value.isNone() || value.text() == "\"\"" || value.text() == "[]" || value.text() == "{}";
    return OptionValue(empty || ((isWhole(value) || value.as<double>()) && realOf(value) == 0));
  }
  constexpr uint64_t kLargest = uint64_t{1} << 63;
  if (op == "-" && value.as<uint64_t>() && *value.as<uint64_t>() == kLargest)
    return OptionValue(std::numeric_limits<int64_t>::min());
  if (op == "+" && value.as<uint64_t>()) return value;
  if (op != "~") return binary(op, OptionValue(int64_t{0}), value);
  if (!isWhole(value)) refuse(ErrorCode::E0702, cat("~ of ", value.text()), "TypeError");
  return OptionValue(~*integer<int64_t>(value));
}

OptionValue readOf(const Options::Values& values, const std::string& group, const std::string& name) {
  if (const OptionValue* found = values.find(group, name)) return *found;
  throw OptionError(ErrorCode::E0701,
                    {.what = cat("there is no option ", name),
                     .remedy = didYouMean(name, values.keys(), "docs/options.md lists all of them")},
                    "AttributeError");
}

// Expressions --------------------------------------------------------------------------------------------------------

class Evaluator {
 public:
  explicit Evaluator(OptionTarget& target) : target_(target) {}

  void run(const Statement& statement) {
    if (!statement.target) {
      const Thing result = thing(statement.value);
      if (statement.value.kind == Expression::Kind::kCall) return;
      throwUser(ErrorCode::E0701, {.what = cat(nameOf(statement.value), " is no setter"),
                                   .expected = "a call such as deviceIterations(4)",
                                   .remedy = "docs/options.md lists all setters"});
    }
    OptionValue given = value(statement.value);
    const Thing owner = thing(statement.target->parts[0]);
    const View* view = std::get_if<View>(&owner);
    if (view == nullptr) refuse(ErrorCode::E0701, cat(nameOf(*statement.target), " is no option"), "AttributeError");
    const std::string group = view->group.empty() ? "Options" : view->group;
    if (view->values)
      view->values->assign(group, statement.target->text, std::move(given));
    else
      target_.assign(group, statement.target->text, std::move(given));
  }

  OptionValue value(const Expression& expression) {
    Thing result = thing(expression);
    if (auto* found = std::get_if<OptionValue>(&result)) return std::move(*found);
    refuse(ErrorCode::E0702, cat(nameOf(expression), " is no value of an option"), "TypeError");
  }

 private:
  using Kind = Expression::Kind;

  static std::string nameOf(const Expression& expression) {
    if (expression.kind == Kind::kName) return expression.text;
    if (expression.kind == Kind::kAttribute) {
      const std::string owner = nameOf(expression.parts[0]);
      return owner == "options" ? expression.text : cat(owner, ".", expression.text);
    }
    return expression.kind == Kind::kConstant ? expression.constant.text() : "an expression";
  }

  Thing thing(const Expression& expression) {
    switch (expression.kind) {
      case Kind::kConstant: return expression.constant;
      case Kind::kName: return named(expression.text);
      case Kind::kAttribute: return attribute(expression);
      case Kind::kCall: return called(expression);
      case Kind::kList: return OptionValue(values(expression.parts, 0, expression.parts.size()));
      case Kind::kMap: return OptionValue(map(expression));
      case Kind::kUnary: return unary(expression.text, value(expression.parts[0]));
      case Kind::kBinary: {
        const OptionValue left = value(expression.parts[0]);
        return binary(expression.text, left, value(expression.parts[1]));
      }
    }
    throwInternal(__FILE__, __LINE__, "thing", "an unknown expression");
  }

  static Thing named(const std::string& name) {
    if (name == "options") return View();
    if (name == "poptorch" || name == "torch" || name == "enums" || isEnum(name)) return Scope{name};
    refuse(ErrorCode::E0701, cat("name ", name, " is not defined"), "NameError");
  }

  Thing attribute(const Expression& expression) {
    const Thing owner = thing(expression.parts[0]);
    const std::string& name = expression.text;
    if (const View* view = std::get_if<View>(&owner)) return optionOf(*view, name);
    const Scope* scope = std::get_if<Scope>(&owner);
    if (scope && scope->name == "torch") return OptionValue(cat("torch.", name));
    if (scope && isEnum(scope->name)) return member(scope->name, name);
    if (scope && (name == "enums" || name == "options")) return *scope;
    if (scope && isEnum(name)) return Scope{name};
    refuse(ErrorCode::E0701, cat(nameOf(expression), " is nothing that options are made of"), "AttributeError");
  }

  Thing optionOf(const View& view, const std::string& name) {
    if (view.group.empty() && isGroup(name)) return View{view.values, name};
    if (findRow(joinPath(view.group, name))) return OptionValue();  // run() says that it is not called
    const std::string group = view.group.empty() ? "Options" : view.group;
    return view.values ? readOf(*view.values, group, name) : target_.read(group, name);
  }

  Thing called(const Expression& expression) {
    const Expression& what = expression.parts[0];
    if (what.kind == Kind::kName && !isObject(what.text)) named(what.text);
    Thing owner = what.kind == Kind::kAttribute ? thing(what.parts[0]) : Thing(Scope{"poptorch"});
    if (what.kind != Kind::kAttribute && what.kind != Kind::kName)
      refuse(ErrorCode::E0701, "what a call returns is no setter", "TypeError");
    const Scope* scope = std::get_if<Scope>(&owner);
    const OptionObject* object = objectOf(owner);
    if (object == nullptr && !std::holds_alternative<View>(owner) && !(scope && scope->name == "poptorch"))
      refuse(ErrorCode::E0701, cat(nameOf(what), " is no setter"), "AttributeError");
    const size_t first_named = expression.parts.size() - expression.names.size();
    OptionList arguments = values(expression.parts, 1, first_named);
    Named by_name;
    for (size_t i = first_named; i < expression.parts.size(); ++i)
      by_name.emplace_back(expression.names[i - first_named], value(expression.parts[i]));
    if (const View* view = std::get_if<View>(&owner)) {
      callSetter(*view, what.text, std::move(arguments), std::move(by_name));
      return owner;
    }
    if (scope && what.text == "Options" && arguments.empty()) return View{std::make_shared<Options::Values>(), {}};
    OptionObject made = scope ? makeObject(what.text, arguments) : *object;
    if (!scope) callMethod(made, what.text, arguments, by_name);
    return OptionValue(std::make_shared<const OptionObject>(std::move(made)));
  }

  static const OptionObject* objectOf(const Thing& thing) {
    const OptionValue* value = std::get_if<OptionValue>(&thing);
    const auto* held = value ? value->as<std::shared_ptr<const OptionObject>>() : nullptr;
    return held == nullptr ? nullptr : held->get();
  }

  void callSetter(const View& view, const std::string& name, OptionList arguments, Named by_name) {
    const std::string path = joinPath(view.group, name);
    if (view.values)
      view.values->call(path, std::move(arguments), std::move(by_name));
    else
      target_.call(path, std::move(arguments), std::move(by_name));
  }

  OptionList values(const std::vector<Expression>& parts, size_t begin, size_t end) {
    OptionList list;
    for (size_t i = begin; i < end; ++i) list.push_back(value(parts[i]));
    return list;
  }

  OptionMap map(const Expression& expression) {
    OptionMap result;
    for (size_t i = 0; i < expression.parts.size(); i += 2) {
      const OptionValue key = value(expression.parts[i]);
      if (!key.as<std::string>())
        refuse(ErrorCode::E0702, cat("the name ", key.text(), " of a map is no string"), "AssertionError");
      result.insert_or_assign(*key.as<std::string>(), value(expression.parts[i + 1]));
    }
    return result;
  }

  OptionTarget& target_;
};

class ValuesTarget : public OptionTarget {
 public:
  explicit ValuesTarget(Options::Values& values) : values_(values) {}
  OptionValue read(const std::string& group, const std::string& key) override { return readOf(values_, group, key); }
  void call(const std::string& path, OptionList arguments, Named named) override {
    values_.call(path, std::move(arguments), std::move(named));
  }
  void assign(const std::string& group, const std::string& key, OptionValue value) override {
    values_.assign(group, key, std::move(value));
  }

 private:
  Options::Values& values_;
};

std::string trimmed(const std::string& line) {
  const auto begin = line.find_first_not_of(" \t\r\f\v");
  return begin == std::string::npos ? "" : line.substr(begin, line.find_last_not_of(" \t\r\f\v") - begin + 1);
}

/// The places where JSON may add several values at once, as Python's dicts have them.
bool applyUpdate(OptionTarget& target, const std::string& path, const OptionValue& value) {
  const OptionMap* map = value.as<OptionMap>();
  if (path == "_Popart.options.update" && map) {
    for (const auto& [name, setting] : *map) target.call("_Popart.set", {OptionValue(name), setting}, {});
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
      target.call("anchorTensor", {OptionValue(name), (*parts)[0], mode, (*parts)[3]}, {});
    }
    return true;
  }
  return false;
}

}  // namespace

void applyConfigText(OptionTarget& target, const std::string& text, const std::string& file_name) {
  std::vector<std::pair<std::string, std::vector<Statement>>> lines;
  size_t begin = 0;
  int number = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    if (line.empty() || line[0] == '#') continue;
    ++number;
    const std::string source = cat("options.", line);
    try {
      lines.emplace_back(source, parseLine(source));
    } catch (const SyntaxError& error) {
      throw OptionError(
          ErrorCode::E0702,
          {.what = cat("SyntaxError at line ", number, " of ", file_name, ": ", error.detail, "\n> ", source),
           .found = source,
           .expected = "lines such as deviceIterations(4)",
           .remedy = "write a setter's call on each line, without \"options.\" in front; # begins a comment"},
          "ConfigFileError");
    }
  }
  Evaluator evaluator(target);
  for (const auto& [source, statements] : lines) try {
      for (const Statement& statement : statements) evaluator.run(statement);
    } catch (Error& error) {
      error.addContext(cat(source, " of ", file_name));
      throw;
    }
}

void applyConfigText(Options::Values& values, const std::string& text, const std::string& file_name) {
  ValuesTarget target(values);
  applyConfigText(target, text, file_name);
}

void applyJson(OptionTarget& target, const std::string& text) {
  std::vector<std::pair<std::string, Expression>> table;
  try {
    table = parseJsonObject(text);
  } catch (const SyntaxError& error) {
    throwUser(ErrorCode::E0702, {.what = cat("options are no JSON object: ", error.detail),
                                 .found = text,
                                 .expected = "{\"dotted.setter\": arguments}"});
  }
  Evaluator evaluator(target);
  for (const auto& [path, expression] : table) {
    const OptionValue value = evaluator.value(expression);
    if (applyUpdate(target, path, value)) continue;
    OptionList arguments = value.as<OptionList>() ? *value.as<OptionList>() : OptionList{value};
    const OptionRow* row = findRow(path);
    for (size_t i = 0; i < arguments.size(); ++i) {
      const std::string* word = arguments[i].as<std::string>();
      if (!word) continue;
      const std::string type = row && i < row->parameters.size() ? row->parameters[i].type : "";
      if (type == "strategy" || type == "location")
        arguments[i] = parseObject(*word);  // JSON has it as the text of its calls
      else if (std::optional<OptionValue> found = memberNamed(*word))
        arguments[i] = *found;
    }
    target.call(path, std::move(arguments), {});
  }
}

void applyJson(Options::Values& values, const std::string& text) {
  ValuesTarget target(values);
  applyJson(target, text);
}

OptionValue parseObject(const std::string& text) {
  try {
    Options::Values none(false);
    ValuesTarget target(none);
    return Evaluator(target).value(parseExpression(text));
  } catch (const SyntaxError& error) {
    throwUser(ErrorCode::E0702, {.what = cat("cannot read ", text, ": ", error.detail), .found = text});
  }
}

}  // namespace abele::host

// What texts of options do: expressions are evaluated, and setters called. No code of the text's own ever runs.
// Source: spec options.md sections 7 and 8.
#include <algorithm>

#include "base/nearest.h"
#include "options/expression.h"
#include "options/objects.h"
#include "options/store.h"
#include "options/things.h"

namespace abele::host {
namespace {

using Named = std::vector<std::pair<std::string, OptionValue>>;

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

OptionValue readOf(const Options::Values& values, const std::string& group, const std::string& name) {
  if (group == "_Popart" && name == "options") return OptionValue(values.popart);
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
    if (statement.target) return assign(*statement.target, statement.value);
    const int calls_before = calls_;
    const Thing result = thing(statement.value);
    const Kind kind = statement.value.kind;
    if (calls_ > calls_before || kind == Kind::kCall || kind == Kind::kConditional || kind == Kind::kLogical) return;
    throwUser(ErrorCode::E0701, {.what = cat(nameOf(statement.value), " is no setter"),
                                 .expected = "a call such as deviceIterations(4)",
                                 .remedy = "docs/options.md lists all setters"});
  }

  OptionValue value(const Expression& expression) { return optionOf(thing(expression), nameOf(expression)); }

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

  // Statements -------------------------------------------------------------------------------------------------------

  void assign(const Expression& target, const Expression& expression) {
    OptionValue given = value(expression);
    if (target.kind == Kind::kSubscript) return assignItem(target, std::move(given));
    const Thing owner = thing(target.parts[0]);
    const View* view = std::get_if<View>(&owner);
    if (view == nullptr) refuse(ErrorCode::E0701, cat(nameOf(target), " is no option"), "AttributeError");
    const std::string group = view->group.empty() ? "Options" : view->group;
    if (view->values)
      view->values->assign(group, target.text, std::move(given));
    else
      target_.assign(group, target.text, std::move(given));
  }

  /// _Popart.options["name"] = value; other items are copies.
  void assignItem(const Expression& target, OptionValue given) {
    const Expression& what = target.parts[0];
    const Thing owner = what.kind == Kind::kAttribute ? thing(what.parts[0]) : Thing();
    const View* view = std::get_if<View>(&owner);
    if (view == nullptr || view->group != "_Popart" || what.text != "options")
      refuse(ErrorCode::E0701, cat("an item of ", nameOf(what), " cannot be set"), "TypeError");
    callSetter(*view, "set", {value(target.parts[1]), std::move(given)}, {});
  }

  // Values -----------------------------------------------------------------------------------------------------------

  Thing thing(const Expression& expression) {
    Thing result = evaluated(expression);
    budget_.take(1 + (containerOf(result) ? 0 : costOf(result)));
    return result;
  }

  Thing evaluated(const Expression& expression) {
    const auto part = [&](size_t i) { return thing(expression.parts[i]); };
    switch (expression.kind) {
      case Kind::kConstant: return expression.constant;
      case Kind::kName: return named(expression.text);
      case Kind::kAttribute: return attribute(expression);
      case Kind::kCall: return called(expression);
      case Kind::kList: return makeContainer(Container::Kind::kList, things(expression.parts));
      case Kind::kTuple: return makeContainer(Container::Kind::kTuple, things(expression.parts));
      case Kind::kSet: return set(things(expression.parts));
      case Kind::kMap: return map(expression);
      case Kind::kUnary: return unaryOf(expression.text, part(0));
      case Kind::kBinary: return binary(expression);
      case Kind::kCompare: return comparison(expression);
      case Kind::kLogical: {
        Thing left = part(0);
        return isTrue(left) == (expression.text == "or") ? left : part(1);
      }
      case Kind::kConditional: return part(isTrue(part(0)) ? 1 : 2);
      case Kind::kComprehension: return comprehension(expression);
      case Kind::kSubscript: return subscript(expression);
      case Kind::kJoined: return joined(expression);
      case Kind::kField: return OptionValue(field(expression));
      case Kind::kClause:
      case Kind::kSlice:
      case Kind::kSpread: break;
    }
    throwInternal(__FILE__, __LINE__, "evaluated", "an expression that stands alone");
  }

  Thing binary(const Expression& expression) {
    const Thing left = thing(expression.parts[0]);
    return binaryOf(expression.text, left, thing(expression.parts[1]), budget_);
  }

  Thing comparison(const Expression& expression) {
    const Thing left = thing(expression.parts[0]), right = thing(expression.parts[1]);
    budget_.take(costOf(left) + costOf(right));
    return OptionValue(compared(expression.text, left, right));
  }

  Thing subscript(const Expression& expression) {
    const Thing what = thing(expression.parts[0]);
    budget_.take(costOf(what));
    const Expression& index = expression.parts[1];
    if (index.kind != Kind::kSlice) return itemAt(what, thing(index));
    const Thing begin = thing(index.parts[0]), end = thing(index.parts[1]);
    return sliceOf(what, begin, end, thing(index.parts[2]));
  }

  Thing joined(const Expression& expression) {
    std::string all;
    for (const Expression& each : expression.parts) all += *scalarOf<std::string>(thing(each));
    return OptionValue(std::move(all));
  }

  std::string field(const Expression& expression) {
    const Thing shown = thing(expression.parts[0]);
    budget_.take(costOf(shown));
    const std::string format = *scalarOf<std::string>(joined(expression.parts[1]));
    if (expression.text.empty()) return formatted(shown, format);
    return formatted(OptionValue(expression.text == "r" ? representationOf(shown) : plainTextOf(shown)), format);
  }

  Thing named(const std::string& name) const {
    for (auto each = variables_.rbegin(); each != variables_.rend(); ++each)
      if (each->first == name) return each->second;
    if (name == "options") return View();
    if (name == "poptorch" || name == "torch" || name == "enums" || isEnum(name)) return Scope{name};
    if (isFunction(name)) return Function{name};
    refuse(ErrorCode::E0701, cat("name ", name, " is not defined"), "NameError");
  }

  Thing attribute(const Expression& expression) {
    const Thing owner = thing(expression.parts[0]);
    const std::string& name = expression.text;
    if (const View* view = std::get_if<View>(&owner)) return optionAt(*view, name);
    const Scope* scope = std::get_if<Scope>(&owner);
    if (scope && scope->name == "torch") return OptionValue(cat("torch.", name));
    if (scope && isEnum(scope->name)) return member(scope->name, name);
    if (scope && (name == "enums" || name == "options")) return *scope;
    if (scope && isEnum(name)) return Scope{name};
    refuse(ErrorCode::E0701, cat(nameOf(expression), " is nothing that options are made of"), "AttributeError");
  }

  Thing optionAt(const View& view, const std::string& name) {
    if (view.group.empty() && isGroup(name)) return View{view.values, name};
    if (findRow(joinPath(view.group, name))) return OptionValue();  // run() says that it is not called
    const std::string group = view.group.empty() ? "Options" : view.group;
    return makeThing(view.values ? readOf(*view.values, group, name) : target_.read(group, name));
  }

  // Calls ------------------------------------------------------------------------------------------------------------

  Thing called(const Expression& expression) {
    const Expression& what = expression.parts[0];
    if (what.kind != Kind::kAttribute && what.kind != Kind::kName)
      refuse(ErrorCode::E0701, "what a call returns is no setter", "TypeError");
    Thing owner = what.kind == Kind::kAttribute ? thing(what.parts[0])
                  : isObject(what.text)         ? Thing(Scope{"poptorch"})
                                                : named(what.text);
    const Scope* scope = std::get_if<Scope>(&owner);
    const bool makes = scope && (what.kind == Kind::kName || scope->name == "poptorch");
    const bool has_methods = objectOf(owner) || containerOf(owner) || scalarOf<std::string>(owner);
    const bool is_function = what.kind == Kind::kName && std::holds_alternative<Function>(owner);
    if (!makes && !is_function && !std::holds_alternative<View>(owner) &&
        !(has_methods && what.kind == Kind::kAttribute))
      refuse(ErrorCode::E0701, cat(nameOf(what), " is no setter"), "AttributeError");
    Things arguments;
    NamedThings by_name;
    takeArguments(expression, arguments, by_name);
    if (is_function) return callFunction(what.text, std::move(arguments), std::move(by_name), budget_);
    if (has_methods && !objectOf(owner))
      return resultOfMethod(owner, what.text, std::move(arguments), std::move(by_name), budget_);
    return calledOfOptions(owner, what, arguments, by_name);
  }

  Thing calledOfOptions(const Thing& owner, const Expression& what, const Things& given, const NamedThings& by_name) {
    OptionList arguments;
    Named named_values;
    for (const Thing& each : given) arguments.push_back(optionOf(each, nameOfArgument(each)));
    for (const auto& [name, each] : by_name) named_values.emplace_back(name, optionOf(each, nameOfArgument(each)));
    if (const View* view = std::get_if<View>(&owner)) {
      callSetter(*view, what.text, std::move(arguments), std::move(named_values));
      return owner;
    }
    const bool makes = std::holds_alternative<Scope>(owner);
    if (makes && what.text == "Options" && arguments.empty()) return View{std::make_shared<Options::Values>(), {}};
    if (makes && isEnum(what.text) && arguments.size() == 1 && wholeNumberOf(given[0]))
      return member(what.text, *wholeNumberOf(given[0]));
    OptionObject made = makes ? makeObject(what.text, arguments) : *objectOf(owner);
    if (!makes) callMethod(made, what.text, arguments, named_values);
    return OptionValue(std::make_shared<const OptionObject>(std::move(made)));
  }

  static std::string nameOfArgument(const Thing& thing) {
    return std::holds_alternative<OptionValue>(thing) ? "" : kindOf(thing);
  }

  void takeArguments(const Expression& expression, Things& arguments, NamedThings& by_name) {
    const size_t first_named = expression.parts.size() - expression.names.size();
    for (size_t i = 1; i < first_named; ++i) addItem(expression.parts[i], arguments);
    for (size_t i = first_named; i < expression.parts.size(); ++i) {
      const std::string& name = expression.names[i - first_named];
      if (!name.empty()) {
        by_name.emplace_back(name, thing(expression.parts[i]));
        continue;
      }
      const Thing spread = thing(expression.parts[i].parts[0]);
      const Container& map = mapOf(spread);
      for (size_t k = 0; k < map.items.size(); ++k) {
        const auto* text = scalarOf<std::string>(map.items[k]);
        if (!text) refuse(ErrorCode::E0702, "the name of an argument is no text", "TypeError");
        by_name.emplace_back(*text, map.mapped[k]);
      }
    }
    for (size_t i = 0; i < by_name.size(); ++i)
      for (size_t k = 0; k < i; ++k)
        if (by_name[i].first == by_name[k].first)
          refuse(ErrorCode::E0702, cat("the argument ", by_name[i].first, " is given twice"), "TypeError");
  }

  static const OptionObject* objectOf(const Thing& thing) {
    const auto* held = scalarOf<std::shared_ptr<const OptionObject>>(thing);
    return held == nullptr ? nullptr : held->get();
  }

  void callSetter(const View& view, const std::string& name, OptionList arguments, Named named) {
    const std::string path = joinPath(view.group, name);
    ++calls_;
    if (view.values)
      view.values->call(path, std::move(arguments), std::move(named));
    else
      target_.call(path, std::move(arguments), std::move(named));
  }

  // Containers -------------------------------------------------------------------------------------------------------

  static const Container& mapOf(const Thing& thing) {
    const Container* map = containerOf(thing);
    if (map == nullptr || map->kind != Container::Kind::kMap)
      refuse(ErrorCode::E0702, cat("** of ", kindOf(thing)), "TypeError");
    return *map;
  }

  void addItem(const Expression& expression, Things& items) {
    if (expression.kind != Kind::kSpread) {
      items.push_back(thing(expression));
      return;
    }
    const Things spread = itemsOf(thing(expression.parts[0]));
    budget_.take(spread.size());
    items.insert(items.end(), spread.begin(), spread.end());
  }

  Things things(const std::vector<Expression>& parts) {
    Things items;
    for (const Expression& each : parts) addItem(each, items);
    return items;
  }

  static Thing set(const Things& items) {
    Container result{.kind = Container::Kind::kSet};
    for (const Thing& each : items) insertItem(result, each);
    return makeContainer(std::move(result));
  }

  Thing map(const Expression& expression) {
    Container result{.kind = Container::Kind::kMap};
    for (size_t i = 0; i < expression.parts.size(); i += 2) {
      if (expression.parts[i].kind != Kind::kSpread) {
        const Thing name = thing(expression.parts[i]);
        insertPair(result, name, thing(expression.parts[i + 1]));
        continue;
      }
      const Thing spread = thing(expression.parts[i].parts[0]);
      const Container& other = mapOf(spread);
      budget_.take(other.items.size());
      for (size_t k = 0; k < other.items.size(); ++k) insertPair(result, other.items[k], other.mapped[k]);
    }
    return makeContainer(std::move(result));
  }

  Thing comprehension(const Expression& expression) {
    Container result{.kind = expression.text == "["   ? Container::Kind::kList
                             : expression.text == "{" ? Container::Kind::kSet
                             : expression.text == ":" ? Container::Kind::kMap
                                                      : Container::Kind::kIterator};
    const size_t variables_before = variables_.size();
    runClauses(expression, result.kind == Container::Kind::kMap ? 2 : 1, result);
    variables_.resize(variables_before);
    return makeContainer(std::move(result));
  }

  void runClauses(const Expression& expression, size_t clause, Container& result) {
    if (clause == expression.parts.size()) {
      Thing item = thing(expression.parts[0]);
      if (result.kind == Container::Kind::kMap)
        insertPair(result, item, thing(expression.parts[1]));
      else if (result.kind == Container::Kind::kSet)
        insertItem(result, item);
      else
        result.items.push_back(std::move(item));
      return;
    }
    const Expression& loop = expression.parts[clause];
    const size_t variables_before = variables_.size();
    for (const Thing& item : itemsOf(thing(loop.parts[0]))) {
      bind(loop, item);
      const auto holds = [&](const Expression& condition) { return isTrue(thing(condition)); };
      if (std::all_of(loop.parts.begin() + 1, loop.parts.end(), holds)) runClauses(expression, clause + 1, result);
      variables_.resize(variables_before);
    }
  }

  void bind(const Expression& loop, const Thing& item) {
    if (loop.text.empty()) {
      variables_.emplace_back(loop.names[0], item);
      return;
    }
    const Things items = itemsOf(item);
    if (items.size() != loop.names.size())
      refuse(ErrorCode::E0702, cat(items.size(), " values for ", loop.names.size(), " variables"), "ValueError");
    for (size_t i = 0; i < items.size(); ++i) variables_.emplace_back(loop.names[i], items[i]);
  }

  OptionTarget& target_;
  NamedThings variables_;  // of the loops around, the innermost last
  Budget budget_;
  int calls_ = 0;  // of setters
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
  struct Line {
    int number = 0;
    std::string source;
    std::vector<Statement> statements;
  };
  std::vector<Line> lines;
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
      lines.push_back({number, source, parseLine(source)});
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
  for (const Line& line : lines) try {
      for (const Statement& statement : line.statements) evaluator.run(statement);
    } catch (Error& error) {
      error.addContext(cat("line ", line.number, " of ", file_name, ": ", line.source));
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

// Functions and methods of Python that configuration files may call: they compute values and reach nothing else.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>

#include "options/things.h"

namespace abele::host {
namespace {

using Kind = Container::Kind;

struct Call {
  std::string name;
  Things arguments;
  NamedThings named;
  Budget& budget;

  [[noreturn]] void refuse(const std::string& what) const {
    host::refuse(ErrorCode::E0702, cat(name, "(): ", what), "TypeError");
  }
  void require(size_t least, size_t most) const {
    if (arguments.size() < least || arguments.size() > most)
      refuse(cat("called with ", arguments.size(), " arguments"));
  }
  /// Takes an argument that is given by name.
  std::optional<Thing> take(const std::string& wanted) {
    for (auto each = named.begin(); each != named.end(); ++each) {
      if (each->first != wanted) continue;
      Thing value = std::move(each->second);
      named.erase(each);
      return value;
    }
    return std::nullopt;
  }
  void requireNoneNamed() const {
    if (!named.empty()) refuse(cat("takes no argument ", named[0].first));
  }
  int64_t whole(size_t i) const {
    const std::optional<int64_t> number = wholeNumberOf(arguments[i]);
    if (!number) refuse(cat(kindOf(arguments[i]), " is no whole number"));
    return *number;
  }
  const std::string& text(size_t i) const {
    const auto* found = scalarOf<std::string>(arguments[i]);
    if (!found) refuse(cat(kindOf(arguments[i]), " is no text"));
    return *found;
  }
  Things items(size_t i) const {
    Things found = itemsOf(arguments[i]);
    budget.take(found.size());
    return found;
  }
  Things itemsInAnyOrder(size_t i) const {
    Things found = host::itemsInAnyOrder(arguments[i]);
    budget.take(found.size());
    return found;
  }
};

Thing iterator(Things items) { return makeContainer(Kind::kIterator, std::move(items)); }
Thing tuple(Things items) { return makeContainer(Kind::kTuple, std::move(items)); }
Thing number(int64_t value) { return OptionValue(value); }

// Numbers ------------------------------------------------------------------------------------------------------------

Thing absolute(Call& call) {
  call.require(1, 1);
  const bool is_negative = isNumber(call.arguments[0]) && realOf(std::get<OptionValue>(call.arguments[0])) < 0;
  return unaryOf(is_negative ? "-" : "+", call.arguments[0]);
}

Thing truth(Call& call) {
  call.require(0, 1);
  return OptionValue(!call.arguments.empty() && isTrue(call.arguments[0]));
}

Thing ofReal(const Call& call, double value) {
  if (!(std::abs(value) < 9.2e18)) call.refuse("the result is too large");
  return number(static_cast<int64_t>(value));
}

std::string strippedNumber(std::string text) {
  const char* const space = " \t\n\r\f\v";
  text.erase(0, std::min(text.find_first_not_of(space), text.size()));
  text.erase(text.find_last_not_of(space) + 1);
  if (text.find("__") == std::string::npos && !text.ends_with('_') && !text.starts_with('_')) std::erase(text, '_');
  if (text.starts_with('+') && text.size() > 1 && text[1] != '-') text.erase(0, 1);
  return text;
}

Thing integerOf(Call& call) {
  call.require(0, 2);
  if (call.arguments.empty()) return number(0);
  const Thing& given = call.arguments[0];
  if (call.arguments.size() == 1 && scalarOf<double>(given)) return ofReal(call, std::trunc(*scalarOf<double>(given)));
  if (call.arguments.size() == 1 && isNumber(given)) return unaryOf("+", given);
  if (const EnumMember* member = scalarOf<EnumMember>(given)) return number(member->value);
  std::string digits = strippedNumber(call.text(0));
  const int64_t base = call.arguments.size() == 2 ? call.whole(1) : 10;
  if (base < 2 || base > 36) call.refuse(cat("base ", base));
  const bool is_negative = digits.starts_with('-');
  const size_t first = is_negative ? 1 : 0;
  const std::string mark = digits.substr(std::min(first, digits.size()), 2);
  if ((base == 16 && (mark == "0x" || mark == "0X")) || (base == 8 && (mark == "0o" || mark == "0O")) ||
      (base == 2 && (mark == "0b" || mark == "0B")))
    digits.erase(first, 2);
  int64_t result = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), result, static_cast<int>(base));
  if (error != std::errc() || end != digits.data() + digits.size())
    refuse(ErrorCode::E0702, cat("int(): ", kindOf(given), " is no whole number"), "ValueError");
  return number(result);
}

Thing realNumberOf(Call& call) {
  call.require(0, 1);
  if (call.arguments.empty()) return OptionValue(0.0);
  if (isNumber(call.arguments[0])) return OptionValue(realOf(std::get<OptionValue>(call.arguments[0])));
  const std::string digits = strippedNumber(call.text(0));
  double result = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), result);
  if (error != std::errc() || end != digits.data() + digits.size())
    refuse(ErrorCode::E0702, cat("float(): ", kindOf(call.arguments[0]), " is no number"), "ValueError");
  return OptionValue(result);
}

Thing roundedNumber(Call& call) {
  call.require(1, 2);
  const Thing& given = call.arguments[0];
  const bool has_digits = call.arguments.size() == 2 && !scalarOf<std::monostate>(call.arguments[1]);
  if (!isNumber(given)) call.refuse(cat(kindOf(given), " is no number"));
  if (has_digits && (call.whole(1) < 0 || call.whole(1) > 300)) call.refuse("so many digits");
  if (!scalarOf<double>(given)) return unaryOf("+", given);
  const double value = *scalarOf<double>(given);
  if (!has_digits) return ofReal(call, std::nearbyint(value));
  const std::string digits = formatted(given, cat(".", call.whole(1), "f"));
  double result = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), result);
  return OptionValue(result);
}

Thing total(Call& call) {
  call.require(1, 2);
  Thing sum = call.arguments.size() == 2 ? call.arguments[1] : number(0);
  if (scalarOf<std::string>(sum)) call.refuse("texts are joined by ''.join(...)");
  for (const Thing& each : call.items(0)) sum = binaryOf("+", sum, each, call.budget);
  return sum;
}

Thing powerOf(Call& call) {
  call.require(2, 2);
  return binaryOf("**", call.arguments[0], call.arguments[1], call.budget);
}

// Items --------------------------------------------------------------------------------------------------------------

Thing extremeOf(Call& call) {
  const std::optional<Thing> otherwise = call.take("default");
  call.requireNoneNamed();
  if (call.arguments.empty()) call.refuse("called without arguments");
  const Things items = call.arguments.size() == 1 ? call.itemsInAnyOrder(0) : call.arguments;
  if (items.empty() && otherwise) return *otherwise;
  if (items.empty()) refuse(ErrorCode::E0702, cat(call.name, "() of nothing"), "ValueError");
  const Thing* best = items.data();
  for (const Thing& each : items)
    if (call.name == "min" ? compared("<", each, *best) : compared(">", each, *best)) best = &each;
  return *best;
}

Thing rangeOf(Call& call) {
  call.require(1, 3);
  const bool is_short = call.arguments.size() == 1;
  const int64_t begin = is_short ? 0 : call.whole(0), end = call.whole(is_short ? 0 : 1);
  const int64_t step = call.arguments.size() == 3 ? call.whole(2) : 1;
  if (step == 0) refuse(ErrorCode::E0702, "range() with step 0", "ValueError");
  Things items;
  int64_t i = begin;
  while (step > 0 ? i < end : i > end) {
    call.budget.take(1);
    items.push_back(number(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return makeContainer(Kind::kRange, std::move(items));
}

Thing lengthOf(Call& call) {
  call.require(1, 1);
  const Container* given = containerOf(call.arguments[0]);
  if (given && given->kind == Kind::kIterator) call.refuse("an iterator has no length");
  return number(static_cast<int64_t>(call.itemsInAnyOrder(0).size()));
}

Thing collected(Call& call, Kind kind) {
  call.require(0, 1);
  if (call.arguments.empty()) return makeContainer(kind, {});
  if (kind != Kind::kSet) return makeContainer(kind, call.items(0));
  Container set{.kind = kind};
  for (const Thing& each : call.itemsInAnyOrder(0)) insertItem(set, each);
  return makeContainer(std::move(set));
}
Thing listOf(Call& call) { return collected(call, Kind::kList); }
Thing tupleOf(Call& call) { return collected(call, Kind::kTuple); }
Thing setOf(Call& call) { return collected(call, Kind::kSet); }

Thing mapOf(Call& call) {
  call.require(0, 1);
  Container result{.kind = Kind::kMap};
  const Container* given = call.arguments.empty() ? nullptr : containerOf(call.arguments[0]);
  if (given && given->kind == Kind::kMap) {
    result = *given;
  } else if (!call.arguments.empty()) {
    for (const Thing& each : call.items(0)) {
      const Things pair = itemsOf(each);
      if (pair.size() != 2) refuse(ErrorCode::E0702, "dict(): an item is no pair", "ValueError");
      insertPair(result, pair[0], pair[1]);
    }
  }
  for (auto& [name, value] : call.named) insertPair(result, OptionValue(name), std::move(value));
  call.named.clear();
  return makeContainer(std::move(result));
}

Thing sortedItems(Call& call) {
  const std::optional<Thing> descending = call.take("reverse");
  call.require(1, 1);
  if (descending && !wholeNumberOf(*descending)) call.refuse(cat("reverse is ", kindOf(*descending)));
  Things items = call.itemsInAnyOrder(0);
  const bool falls = descending && isTrue(*descending);
  std::ranges::stable_sort(
      items, [&](const Thing& a, const Thing& b) { return falls ? compared("<", b, a) : compared("<", a, b); });
  return makeContainer(Kind::kList, std::move(items));
}

Thing reversedItems(Call& call) {
  call.require(1, 1);
  const Container* given = containerOf(call.arguments[0]);
  if (given && given->kind == Kind::kSet) call.refuse("a set has no order");
  Things items = call.items(0);
  std::ranges::reverse(items);
  return iterator(std::move(items));
}

Thing numbered(Call& call) {
  const std::optional<Thing> named = call.take("start");
  call.require(1, 2);
  if (call.arguments.size() == 1) call.arguments.push_back(named ? *named : number(0));
  int64_t next = call.whole(1);
  if (std::abs(static_cast<double>(next)) > 1e18) call.refuse("the start is too large");
  Things pairs;
  for (const Thing& each : call.items(0)) pairs.push_back(tuple({number(next++), each}));
  return iterator(std::move(pairs));
}

Thing zipped(Call& call) {
  std::vector<Things> columns;
  for (size_t i = 0; i < call.arguments.size(); ++i) columns.push_back(call.items(i));
  const auto shorter = [](const Things& a, const Things& b) { return a.size() < b.size(); };
  const size_t rows = columns.empty() ? 0 : std::ranges::min_element(columns, shorter)->size();
  Things all;
  for (size_t i = 0; i < rows; ++i) {
    Things row;
    for (const Things& column : columns) row.push_back(column[i]);
    all.push_back(tuple(std::move(row)));
  }
  return iterator(std::move(all));
}

Thing anyOf(Call& call) {
  call.require(1, 1);
  return OptionValue(std::ranges::any_of(call.itemsInAnyOrder(0), isTrue));
}
Thing allOf(Call& call) {
  call.require(1, 1);
  return OptionValue(std::ranges::all_of(call.itemsInAnyOrder(0), isTrue));
}

Thing toText(Call& call) {
  call.require(0, 1);
  return OptionValue(call.arguments.empty() ? std::string() : plainTextOf(call.arguments[0]));
}
Thing toRepresentation(Call& call) {
  call.require(1, 1);
  return OptionValue(representationOf(call.arguments[0]));
}

using Body = Thing (*)(Call&);
const std::map<std::string, Body>& functions() {
  static const std::map<std::string, Body> all = {{"abs", absolute},
                                                  {"all", allOf},
                                                  {"any", anyOf},
                                                  {"bool", truth},
                                                  {"dict", mapOf},
                                                  {"enumerate", numbered},
                                                  {"float", realNumberOf},
                                                  {"int", integerOf},
                                                  {"len", lengthOf},
                                                  {"list", listOf},
                                                  {"max", extremeOf},
                                                  {"min", extremeOf},
                                                  {"pow", powerOf},
                                                  {"range", rangeOf},
                                                  {"repr", toRepresentation},
                                                  {"reversed", reversedItems},
                                                  {"round", roundedNumber},
                                                  {"set", setOf},
                                                  {"sorted", sortedItems},
                                                  {"str", toText},
                                                  {"sum", total},
                                                  {"tuple", tupleOf},
                                                  {"zip", zipped}};
  return all;
}

// Methods ------------------------------------------------------------------------------------------------------------

void requireAscii(const Call& call, const std::string& text) {
  if (std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0x80; }))
    call.refuse("of text with letters beyond ASCII");
}

std::string withCase(const Call& call, std::string text) {
  requireAscii(call, text);
  for (char& c : text) {
    const auto letter = static_cast<unsigned char>(c);
    c = static_cast<char>(call.name == "upper" ? std::toupper(letter) : std::tolower(letter));
  }
  return text;
}

std::string stripped(const Call& call, const std::string& text) {
  requireAscii(call, text);
  const bool has_set = !call.arguments.empty() && !scalarOf<std::monostate>(call.arguments[0]);
  const std::string set = has_set ? call.text(0) : " \t\n\r\f\v";
  const size_t begin = call.name == "rstrip" ? 0 : std::min(text.find_first_not_of(set), text.size());
  const size_t end = call.name == "lstrip" ? text.size() : text.find_last_not_of(set) + 1;
  return begin < end ? text.substr(begin, end - begin) : "";
}

Thing splitText(const Call& call, const std::string& text) {
  Things parts;
  const bool by_space = call.arguments.empty() || scalarOf<std::monostate>(call.arguments[0]);
  const std::string separator = by_space ? "" : call.text(0);
  if (!by_space && separator.empty()) refuse(ErrorCode::E0702, "split() by nothing", "ValueError");
  const char* const space = " \t\n\r\f\v";
  for (size_t begin = by_space ? text.find_first_not_of(space) : 0; begin != std::string::npos;) {
    const size_t end = by_space ? text.find_first_of(space, begin) : text.find(separator, begin);
    parts.emplace_back(OptionValue(text.substr(begin, end == std::string::npos ? end : end - begin)));
    call.budget.take(1);
    if (end == std::string::npos) break;
    begin = by_space ? text.find_first_not_of(space, end) : end + separator.size();
  }
  return makeContainer(Kind::kList, std::move(parts));
}

std::string joinTexts(const Call& call, const std::string& between) {
  std::string all;
  bool is_first = true;
  for (const Thing& each : call.items(0)) {
    const auto* text = scalarOf<std::string>(each);
    if (!text) call.refuse(cat(kindOf(each), " is no text"));
    call.budget.take(text->size() + between.size());
    all += cat(is_first ? "" : between, *text);
    is_first = false;
  }
  return all;
}

std::string replaced(const Call& call, const std::string& text) {
  const std::string &from = call.text(0), &to = call.text(1);
  if (from.empty()) call.refuse("of nothing");
  std::string all;
  size_t begin = 0;
  for (size_t end = text.find(from); end != std::string::npos; end = text.find(from, begin)) {
    all += text.substr(begin, end - begin) + to;
    call.budget.take(to.size() + 1);
    begin = end + from.size();
  }
  return all + text.substr(begin);
}

std::string filledWithZeros(const Call& call, const std::string& text) {
  const int64_t width = call.whole(0);
  call.budget.take(static_cast<size_t>(std::max<int64_t>(width, 0)));
  const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  const auto length = static_cast<int64_t>(codePointsOf(text).size());
  return cat(text.substr(0, sign), std::string(static_cast<size_t>(std::max<int64_t>(width - length, 0)), '0'),
             text.substr(sign));
}

Thing textMethod(Call& call, const std::string& text) {
  const std::string& name = call.name;
  const auto takes = [&](size_t least, size_t most) {
    call.require(least, most);
    call.requireNoneNamed();
  };
  if (name == "format") return OptionValue(braceFormatted(text, call.arguments, call.named));
  if (name == "upper" || name == "lower") {
    takes(0, 0);
    return OptionValue(withCase(call, text));
  }
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    takes(0, 1);
    return OptionValue(stripped(call, text));
  }
  if (name == "split") {
    takes(0, 1);
    return splitText(call, text);
  }
  if (name == "replace") {
    takes(2, 2);
    return OptionValue(replaced(call, text));
  }
  const bool known = name == "join" || name == "startswith" || name == "endswith" || name == "zfill";
  if (!known) refuse(ErrorCode::E0701, cat("text has no method ", name, "() here"), "AttributeError");
  takes(1, 1);
  if (name == "join") return OptionValue(joinTexts(call, text));
  if (name == "zfill") return OptionValue(filledWithZeros(call, text));
  return OptionValue(name == "startswith" ? text.starts_with(call.text(0)) : text.ends_with(call.text(0)));
}

Thing containerMethod(Call& call, const Container& container) {
  const std::string& name = call.name;
  call.requireNoneNamed();
  const bool is_map = container.kind == Kind::kMap;
  if (is_map && (name == "keys" || name == "values" || name == "items")) {
    call.require(0, 0);
    call.budget.take(container.items.size());
    if (name != "items") return iterator(name == "keys" ? container.items : container.mapped);
    Things pairs;
    for (size_t i = 0; i < container.items.size(); ++i)
      pairs.push_back(tuple({container.items[i], container.mapped[i]}));
    return iterator(std::move(pairs));
  }
  if (is_map && name == "get") {
    call.require(1, 2);
    if (const std::optional<size_t> place = placeIn(container, call.arguments[0])) return container.mapped[*place];
    return call.arguments.size() == 2 ? call.arguments[1] : Thing(OptionValue());
  }
  const bool is_sequence = container.kind == Kind::kList || container.kind == Kind::kTuple;
  if (is_sequence && (name == "index" || name == "count")) {
    call.require(1, 1);
    const auto same = [&](const Thing& each) { return equalThings(each, call.arguments[0]); };
    if (name == "count") return number(std::ranges::count_if(container.items, same));
    const auto found = std::ranges::find_if(container.items, same);
    if (found == container.items.end()) refuse(ErrorCode::E0702, "index() of what is not there", "ValueError");
    return number(found - container.items.begin());
  }
  refuse(ErrorCode::E0701, cat("a configuration file cannot call ", name, "() of a container"), "AttributeError");
}

}  // namespace

bool isFunction(const std::string& name) { return functions().contains(name); }

Thing callFunction(const std::string& name, Things arguments, NamedThings named, Budget& budget) {
  Call call{name, std::move(arguments), std::move(named), budget};
  Thing result = functions().at(name)(call);
  call.requireNoneNamed();
  return result;
}

Thing resultOfMethod(const Thing& owner, const std::string& name, Things arguments, NamedThings named, Budget& budget) {
  Call call{name, std::move(arguments), std::move(named), budget};
  if (const Container* container = containerOf(owner)) return containerMethod(call, *container);
  return textMethod(call, *scalarOf<std::string>(owner));
}

}  // namespace abele::host

// Operators of configuration files, with Python's results.
#include <algorithm>
#include <cmath>
#include <optional>

#include "options/things.h"

namespace abele::host {
namespace {

using Kind = Container::Kind;
using Wide = __int128;  // holds every result of one operator on whole numbers

constexpr int64_t kLargestShift = 64;  // of << and **: a number of the file, not the memory of the machine
constexpr Wide kMost = std::numeric_limits<uint64_t>::max();
constexpr Wide kLeast = std::numeric_limits<int64_t>::min();

[[noreturn]] void tooLarge(const std::string& text) {
  refuse(ErrorCode::E0702, cat("the result of ", text, " is too large"), "ValueError");
}

std::optional<Wide> wideOf(const Thing& thing) {
  if (scalarOf<bool>(thing)) return *scalarOf<bool>(thing);
  if (scalarOf<int64_t>(thing)) return *scalarOf<int64_t>(thing);
  if (scalarOf<uint64_t>(thing)) return *scalarOf<uint64_t>(thing);
  return std::nullopt;
}

Thing ofWide(Wide value, const std::string& op) {
  if (value < kLeast || value > kMost) tooLarge(op);
  if (value > std::numeric_limits<int64_t>::max()) return OptionValue(static_cast<uint64_t>(value));
  return OptionValue(static_cast<int64_t>(value));
}

Wide power(Wide base, Wide exponent, const std::string& op) {
  Wide result = 1;
  for (Wide i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) tooLarge(op);
    if (result < kLeast || result > kMost) tooLarge(op);
  }
  return result;
}

Wide floorDivide(Wide a, Wide b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

Thing wholeResult(const std::string& op, Wide a, Wide b) {
  if (op == "+") return ofWide(a + b, op);
  if (op == "-") return ofWide(a - b, op);
  if (op == "*") {
    Wide result = 0;
    if (__builtin_mul_overflow(a, b, &result)) tooLarge(op);
    return ofWide(result, op);
  }
  if (op == "//") return ofWide(floorDivide(a, b), op);
  if (op == "%") return ofWide(a - floorDivide(a, b) * b, op);
  if (op == "|") return ofWide(a | b, op);
  if (op == "&") return ofWide(a & b, op);
  if (op == "^") return ofWide(a ^ b, op);
  if (op == "**") return ofWide(power(a, b, op), op);
  if (b < 0) refuse(ErrorCode::E0702, "negative shift count", "ValueError");
  if (op == ">>") return ofWide(a >> std::min<Wide>(b, 64), op);
  Wide result = 0;
  if (b > kLargestShift || __builtin_mul_overflow(a, Wide{1} << b, &result)) tooLarge(op);
  return ofWide(result, op);
}

double remainderOf(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest == 0 ? std::copysign(0.0, b) : rest;
}

double floorQuotient(double a, double b) {
  const double quotient = (a - remainderOf(a, b)) / b;
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

Thing realResult(const std::string& op, double a, double b) {
  if (op == "+") return OptionValue(a + b);
  if (op == "-") return OptionValue(a - b);
  if (op == "*") return OptionValue(a * b);
  if (op == "/") return OptionValue(a / b);
  if (op == "//") return OptionValue(floorQuotient(a, b));
  if (op == "%") return OptionValue(remainderOf(a, b));
  if (op != "**") refuse(ErrorCode::E0702, cat(op, " of numbers that are not whole"), "TypeError");
  if (a == 0 && b < 0) refuse(ErrorCode::E0702, "0 to a negative power", "ZeroDivisionError");
  const double result = std::pow(a, b);
  if (std::isnan(result) && !std::isnan(a) && !std::isnan(b))
    refuse(ErrorCode::E0702, "a power that is a complex number", "ValueError");
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) tooLarge(op);
  return OptionValue(result);
}

Thing numberResult(const std::string& op, const Thing& left, const Thing& right) {
  for (const Thing* side : {&left, &right})
    if (!isNumber(*side)) refuse(ErrorCode::E0702, cat("arithmetic (", op, ") with ", kindOf(*side)), "TypeError");
  const double b = realOf(std::get<OptionValue>(right));
  if ((op == "<<" || op == "**") && std::abs(b) > kLargestShift) tooLarge(op);
  if ((op == "/" || op == "//" || op == "%") && b == 0)
    refuse(ErrorCode::E0702, "division by zero", "ZeroDivisionError");
  const std::optional<Wide> a = wideOf(left), c = wideOf(right);
  const bool is_whole = a && c && op != "/" && !(op == "**" && *c < 0);
  if (scalarOf<bool>(left) && scalarOf<bool>(right) && (op == "|" || op == "&" || op == "^"))
    return OptionValue(*wideOf(std::get<OptionValue>(wholeResult(op, *a, *c))) != 0);
  return is_whole ? wholeResult(op, *a, *c) : realResult(op, realOf(std::get<OptionValue>(left)), b);
}

Thing repeated(const Thing& what, int64_t times, Budget& budget) {
  const auto count = static_cast<size_t>(std::max<int64_t>(times, 0));
  const auto charge = [&](size_t each) {
    if (each != 0 && count > 100'000 / each) tooLarge("*");
    budget.take(each * count);
  };
  if (const auto* text = scalarOf<std::string>(what)) {
    charge(text->size());
    std::string all;
    for (size_t i = 0; i < count; ++i) all += *text;
    return OptionValue(all);
  }
  const Container& list = *containerOf(what);
  charge(list.items.size());
  Things all;
  for (size_t i = 0; i < count; ++i) all.insert(all.end(), list.items.begin(), list.items.end());
  return makeContainer(list.kind, std::move(all));
}

bool isSequence(const Thing& thing) {
  const Container* container = containerOf(thing);
  return scalarOf<std::string>(thing) ||
         (container && (container->kind == Kind::kList || container->kind == Kind::kTuple));
}

std::optional<Thing> joinedSequences(const Thing& left, const Thing& right, Budget& budget) {
  if (scalarOf<std::string>(left) && scalarOf<std::string>(right)) {
    budget.take(scalarOf<std::string>(left)->size() + scalarOf<std::string>(right)->size());
    return OptionValue(*scalarOf<std::string>(left) + *scalarOf<std::string>(right));
  }
  const Container *a = containerOf(left), *b = containerOf(right);
  if (!a || !b || a->kind != b->kind || !isSequence(left)) return std::nullopt;
  budget.take(a->items.size() + b->items.size());
  Things all = a->items;
  all.insert(all.end(), b->items.begin(), b->items.end());
  return makeContainer(a->kind, std::move(all));
}

std::optional<Thing> mergedMaps(const Thing& left, const Thing& right) {
  const Container *a = containerOf(left), *b = containerOf(right);
  if (!a || !b || a->kind != Kind::kMap || b->kind != Kind::kMap) return std::nullopt;
  Container all = *a;
  for (size_t i = 0; i < b->items.size(); ++i) insertPair(all, b->items[i], b->mapped[i]);
  return makeContainer(std::move(all));
}

// Comparisons --------------------------------------------------------------------------------------------------------

bool contains(const Thing& whole, const Thing& part) {
  if (const auto* text = scalarOf<std::string>(whole)) {
    if (!scalarOf<std::string>(part)) refuse(ErrorCode::E0702, cat(kindOf(part), " in text"), "TypeError");
    return text->find(*scalarOf<std::string>(part)) != std::string::npos;
  }
  const Container* container = containerOf(whole);
  if (container && (container->kind == Kind::kSet || container->kind == Kind::kMap))
    return placeIn(*container, part).has_value();
  const Things items = itemsOf(whole);
  return std::ranges::any_of(items, [&](const Thing& item) { return equalThings(item, part); });
}

bool less(const Thing& left, const Thing& right) {
  const std::optional<Wide> a = wideOf(left), b = wideOf(right);
  if (a && b) return *a < *b;
  if (isNumber(left) && isNumber(right))
    return realOf(std::get<OptionValue>(left)) < realOf(std::get<OptionValue>(right));
  if (scalarOf<std::string>(left) && scalarOf<std::string>(right))  // UTF-8 is in the order of code points
    return *scalarOf<std::string>(left) < *scalarOf<std::string>(right);
  const Container *c = containerOf(left), *d = containerOf(right);
  if (!c || !d || c->kind != d->kind || !isSequence(left))
    refuse(ErrorCode::E0702, cat(kindOf(left), " and ", kindOf(right), " have no order"), "TypeError");
  for (size_t i = 0; i < std::min(c->items.size(), d->items.size()); ++i)
    if (!equalThings(c->items[i], d->items[i])) return less(c->items[i], d->items[i]);
  return c->items.size() < d->items.size();
}

std::optional<double> enumNumber(const Thing& thing) {
  if (const EnumMember* member = scalarOf<EnumMember>(thing)) return static_cast<double>(member->value);
  return isNumber(thing) ? std::optional<double>(realOf(std::get<OptionValue>(thing))) : std::nullopt;
}

bool equalContainers(const Container& a, const Container& b) {
  for (const Container* each : {&a, &b})
    if (isLazy(*each)) refuse(ErrorCode::E0702, "a range or an iterator is compared", "TypeError");
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (a.kind == Kind::kList || a.kind == Kind::kTuple) {
      if (!equalThings(a.items[i], b.items[i])) return false;
      continue;
    }
    const std::optional<size_t> place = placeIn(b, a.items[i]);
    if (!place || (a.kind == Kind::kMap && !equalThings(a.mapped[i], b.mapped[*place]))) return false;
  }
  return true;
}

// Indices ------------------------------------------------------------------------------------------------------------

Things sequenceItems(const Thing& what) {
  const Container* container = containerOf(what);
  const bool has_places = container && (isSequence(what) || container->kind == Kind::kRange);
  if (!scalarOf<std::string>(what) && !has_places)
    refuse(ErrorCode::E0702, cat(kindOf(what), " has no items by number"), "TypeError");
  return itemsOf(what);
}

}  // namespace

double realOf(const OptionValue& value) {
  if (value.as<double>()) return *value.as<double>();
  if (value.as<uint64_t>()) return static_cast<double>(*value.as<uint64_t>());
  return static_cast<double>(*integer<int64_t>(value));
}

bool isNumber(const Thing& thing) { return wideOf(thing).has_value() || scalarOf<double>(thing); }

std::optional<int64_t> wholeNumberOf(const Thing& thing) {
  const std::optional<Wide> number = wideOf(thing);
  if (!number || *number > std::numeric_limits<int64_t>::max()) return std::nullopt;
  return static_cast<int64_t>(*number);
}

Thing binaryOf(const std::string& op, const Thing& left, const Thing& right, Budget& budget) {
  if (op == "%" && scalarOf<std::string>(left))
    return OptionValue(percentFormatted(*scalarOf<std::string>(left), right));
  if (op == "+")
    if (std::optional<Thing> all = joinedSequences(left, right, budget)) return *all;
  if (op == "|")
    if (std::optional<Thing> all = mergedMaps(left, right)) return *all;
  if (op == "*" && isSequence(left) && wholeNumberOf(right)) return repeated(left, *wholeNumberOf(right), budget);
  if (op == "*" && isSequence(right) && wholeNumberOf(left)) return repeated(right, *wholeNumberOf(left), budget);
  return numberResult(op, left, right);
}

Thing unaryOf(const std::string& op, const Thing& operand) {
  if (op == "not") return OptionValue(!isTrue(operand));
  if (!isNumber(operand)) refuse(ErrorCode::E0702, cat("arithmetic (", op, ") with ", kindOf(operand)), "TypeError");
  const std::optional<Wide> whole = wideOf(operand);
  if (!whole && op == "~") refuse(ErrorCode::E0702, "~ of a number that is not whole", "TypeError");
  if (!whole) return OptionValue(op == "-" ? -*scalarOf<double>(operand) : *scalarOf<double>(operand));
  return ofWide(op == "-" ? -*whole : op == "~" ? ~*whole : *whole, op);
}

bool equalThings(const Thing& left, const Thing& right) {
  const Container *c = containerOf(left), *d = containerOf(right);
  if (c && d) return equalContainers(*c, *d);
  for (const Thing* side : {&left, &right})
    if (!containerOf(*side) &&
        (!std::holds_alternative<OptionValue>(*side) || scalarOf<std::shared_ptr<const OptionObject>>(*side)))
      refuse(ErrorCode::E0702, cat(kindOf(*side), " is compared"), "TypeError");
  if (c || d) return false;
  const EnumMember *member = scalarOf<EnumMember>(left), *other = scalarOf<EnumMember>(right);
  if (member && other) return *member == *other;
  const std::optional<Wide> a = wideOf(left), b = wideOf(right);
  if (a && b) return *a == *b;
  const std::optional<double> x = enumNumber(left), y = enumNumber(right);
  if (x && y) return *x == *y;
  const auto *text = scalarOf<std::string>(left), *other_text = scalarOf<std::string>(right);
  if (text && other_text) return *text == *other_text;
  return std::get<OptionValue>(left).isNone() && std::get<OptionValue>(right).isNone();
}

bool compared(const std::string& op, const Thing& left, const Thing& right) {
  if (op == "==") return equalThings(left, right);
  if (op == "!=") return !equalThings(left, right);
  if (op == "in") return contains(right, left);
  if (op == "not in") return !contains(right, left);
  if (op == "<") return less(left, right);
  if (op == ">") return less(right, left);
  if (op == "<=" || op == ">=") {
    const bool below = op == "<=" ? less(left, right) : less(right, left);
    return below || equalThings(left, right);
  }
  const auto is_single = [](const Thing& thing) {
    const OptionValue* value = std::get_if<OptionValue>(&thing);
    return value && (value->isNone() || value->as<bool>());
  };
  if (!is_single(left) && !is_single(right))
    refuse(ErrorCode::E0702, cat(op, " compares with None, True or False only"), "TypeError");
  const bool same =
      is_single(left) && is_single(right) && std::get<OptionValue>(left).text() == std::get<OptionValue>(right).text();
  return same == (op == "is");
}

Thing itemAt(const Thing& what, const Thing& index) {
  const Container* container = containerOf(what);
  if (container && container->kind == Kind::kMap) {
    if (const std::optional<size_t> place = placeIn(*container, index)) return container->mapped[*place];
    refuse(ErrorCode::E0702, cat("a map without the name ", representationOf(index)), "KeyError");
  }
  const Things items = sequenceItems(what);
  const std::optional<int64_t> place = wholeNumberOf(index);
  if (!place) refuse(ErrorCode::E0702, cat(kindOf(index), " as an index"), "TypeError");
  const auto size = static_cast<int64_t>(items.size());
  if (*place < -size || *place >= size)
    refuse(ErrorCode::E0702, cat("index ", *place, " of ", kindOf(what), " of ", size), "IndexError");
  return items[static_cast<size_t>(*place < 0 ? *place + size : *place)];
}

Thing sliceOf(const Thing& what, const Thing& begin, const Thing& end, const Thing& step) {
  const Things items = sequenceItems(what);
  const auto size = static_cast<int64_t>(items.size());
  const auto number = [&](const Thing& thing, int64_t otherwise) {
    if (scalarOf<std::monostate>(thing)) return otherwise;
    if (!wholeNumberOf(thing)) refuse(ErrorCode::E0702, cat(kindOf(thing), " in a slice"), "TypeError");
    return *wholeNumberOf(thing);
  };
  const int64_t by = number(step, 1);
  if (by == 0) refuse(ErrorCode::E0702, "a slice with step 0", "ValueError");
  const auto bound = [&](const Thing& thing, int64_t otherwise) {
    int64_t place = number(thing, otherwise);
    if (!scalarOf<std::monostate>(thing) && place < 0) place = std::max(place, -size) + size;
    return by > 0 ? std::clamp<int64_t>(place, 0, size) : std::clamp<int64_t>(place, -1, size - 1);
  };
  const auto below = [&](const Thing& thing) { return wholeNumberOf(thing) && *wholeNumberOf(thing) < -size; };
  const int64_t from = by < 0 && below(begin) ? -1 : bound(begin, by > 0 ? 0 : size - 1);
  const int64_t to = by < 0 && below(end) ? -1 : bound(end, by > 0 ? size : -1);
  Things taken;
  std::string text;
  for (int64_t i = from; by > 0 ? i < to : i > to;) {
    taken.push_back(items[static_cast<size_t>(i)]);
    if (scalarOf<std::string>(what)) text += *scalarOf<std::string>(taken.back());
    if (by > size || by < -size) break;
    i += by;
  }
  if (scalarOf<std::string>(what)) return OptionValue(text);
  return makeContainer(containerOf(what)->kind, std::move(taken));
}

}  // namespace abele::host

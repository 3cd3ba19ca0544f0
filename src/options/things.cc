#include "options/things.h"

#include <cmath>

namespace abele::host {
namespace {

using Kind = Container::Kind;

const char* const kKinds[] = {"a list", "a tuple", "a set", "a map", "a range", "an iterator"};

/// Equal things have equal keys.
std::string keyOf(const Thing& thing) {
  if (const auto* text = scalarOf<std::string>(thing)) return cat("text ", *text);
  if (const auto* member = scalarOf<EnumMember>(thing)) return cat("number ", member->value);
  if (scalarOf<std::monostate>(thing)) return "none";
  if (const double* real = scalarOf<double>(thing)) {
    const bool is_whole = std::floor(*real) == *real && std::abs(*real) < 9e18;
    return is_whole ? cat("number ", static_cast<int64_t>(*real)) : cat("number ", *real);
  }
  if (isNumber(thing)) return cat("number ", plainTextOf(unaryOf("+", thing)));
  const Container* tuple = containerOf(thing);
  if (tuple == nullptr || tuple->kind != Kind::kTuple)
    refuse(ErrorCode::E0702, cat(kindOf(thing), " in a set, or as a name in a map"), "TypeError");
  std::string key = "tuple";
  for (const Thing& each : tuple->items) {
    const std::string part = keyOf(each);
    key += cat(" ", part.size(), ":", part);
  }
  return key;
}

}  // namespace

void Budget::take(size_t count) {
  if (count > left_) refuse(ErrorCode::E0702, "a text that asks for more than 100000 values", "ValueError");
  left_ -= count;
}

void refuse(ErrorCode code, const std::string& what, const char* builtin) {
  throw OptionError(code, {.what = what}, builtin);
}

Thing makeThing(const OptionValue& value) {
  if (const OptionList* list = value.as<OptionList>()) {
    Things items;
    for (const OptionValue& each : *list) items.push_back(makeThing(each));
    return makeContainer(Kind::kList, std::move(items));
  }
  if (const OptionMap* map = value.as<OptionMap>()) {
    Container result{.kind = Kind::kMap};
    for (const auto& [name, each] : *map) insertPair(result, OptionValue(name), makeThing(each));
    return makeContainer(std::move(result));
  }
  return value;
}

Thing makeContainer(Kind kind, Things items) {
  return makeContainer(Container{.kind = kind, .items = std::move(items)});
}

Thing makeContainer(Container container) { return std::make_shared<const Container>(std::move(container)); }

const Container* containerOf(const Thing& thing) {
  const auto* held = std::get_if<std::shared_ptr<const Container>>(&thing);
  return held == nullptr ? nullptr : held->get();
}

OptionValue optionOf(const Thing& thing, const std::string& name) {
  if (const OptionValue* value = std::get_if<OptionValue>(&thing)) return *value;
  const Container* container = containerOf(thing);
  if (container == nullptr) refuse(ErrorCode::E0702, cat(name, " is no value of an option"), "TypeError");
  if (isLazy(*container))
    throw OptionError(ErrorCode::E0702,
                      {.what = cat(name, " is no value of an option"), .found = kindOf(thing), .remedy = "list(...)"},
                      "TypeError");
  if (container->kind != Kind::kMap) {
    OptionList list;
    for (const Thing& each : container->items) list.push_back(optionOf(each, name));
    return OptionValue(std::move(list));
  }
  OptionMap map;
  for (size_t i = 0; i < container->items.size(); ++i) {
    const auto* key = scalarOf<std::string>(container->items[i]);
    if (!key)
      refuse(ErrorCode::E0702, cat("the name of a map is ", kindOf(container->items[i]), ", not text"),
             "AssertionError");
    map.insert_or_assign(*key, optionOf(container->mapped[i], name));
  }
  return OptionValue(std::move(map));
}

std::string kindOf(const Thing& thing) {
  if (const Container* container = containerOf(thing)) return kKinds[static_cast<size_t>(container->kind)];
  if (std::holds_alternative<View>(thing)) return "options";
  if (const auto* scope = std::get_if<Scope>(&thing)) return scope->name;
  if (const auto* function = std::get_if<Function>(&thing)) return function->name;
  return std::get<OptionValue>(thing).text();
}

bool isTrue(const Thing& thing) {
  if (const Container* container = containerOf(thing)) {
    if (container->kind == Kind::kIterator) refuse(ErrorCode::E0702, "whether an iterator is true", "TypeError");
    return !container->items.empty();
  }
  if (scalarOf<std::monostate>(thing)) return false;
  if (isNumber(thing)) return realOf(std::get<OptionValue>(thing)) != 0;
  if (const auto* text = scalarOf<std::string>(thing)) return !text->empty();
  const auto* member = scalarOf<EnumMember>(thing);
  return member == nullptr || member->value != 0;
}

Things itemsOf(const Thing& thing) {
  const Container* set = containerOf(thing);
  if (set && set->kind == Kind::kSet && set->items.size() > 1)
    throw OptionError(ErrorCode::E0702, {.what = "the order of a set", .remedy = "sorted(...), or a list"},
                      "TypeError");
  return itemsInAnyOrder(thing);
}

bool isLazy(const Container& container) { return container.kind == Kind::kIterator || container.kind == Kind::kRange; }

Things itemsInAnyOrder(const Thing& thing) {
  if (const Container* container = containerOf(thing)) return container->items;
  const auto* text = scalarOf<std::string>(thing);
  if (text == nullptr) refuse(ErrorCode::E0702, cat(kindOf(thing), " has no items"), "TypeError");
  Things items;
  for (const std::string& each : codePointsOf(*text)) items.emplace_back(OptionValue(each));
  return items;
}

std::optional<size_t> placeIn(const Container& container, const Thing& item) {
  const auto found = container.places.find(keyOf(item));
  return found == container.places.end() ? std::nullopt : std::optional<size_t>(found->second);
}

void insertItem(Container& set, const Thing& item) {
  if (set.places.emplace(keyOf(item), set.items.size()).second) set.items.push_back(item);
}

void insertPair(Container& map, const Thing& name, Thing value) {
  insertItem(map, name);
  map.mapped.resize(map.items.size());
  map.mapped[*placeIn(map, name)] = std::move(value);
}

size_t costOf(const Thing& thing) {
  if (const Container* container = containerOf(thing)) return container->items.size();
  const auto* text = scalarOf<std::string>(thing);
  return text == nullptr ? 0 : text->size() / 64;
}

}  // namespace abele::host

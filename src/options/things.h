// What expressions of configuration files work on: the values of options, and containers as Python keeps them.
// Used by evaluate.cc, arithmetic.cc, functions.cc and formats.cc.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "options/store.h"

namespace abele::host {

/// The options, or one group of them. values: of the text's own Options(); nullptr: the target's.
struct View {
  std::shared_ptr<Options::Values> values;
  std::string group;  // empty: all
};
/// A name that something follows: poptorch, torch, or an enumeration.
struct Scope {
  std::string name;
};
/// One of those of Python that functions.cc has.
struct Function {
  std::string name;
};
struct Container;

/// An OptionValue in it is neither a list nor a map.
using Thing = std::variant<OptionValue, std::shared_ptr<const Container>, View, Scope, Function>;
using Things = std::vector<Thing>;
using NamedThings = std::vector<std::pair<std::string, Thing>>;

struct Container {
  enum class Kind { kList, kTuple, kSet, kMap, kRange, kIterator };  // kIterator: zip, generators, items of a map, ...
  Kind kind = Kind::kList;
  Things items;                          // of a map: its names
  Things mapped;                         // of a map: its values
  std::map<std::string, size_t> places;  // of a set or a map: where an item is, by its key
};

/// Work that is left to one text: a line cannot keep the machine busy. Units: values made.
class Budget {
 public:
  /// Throws E0702.
  void take(size_t count);

 private:
  size_t left_ = 100'000;
};

/// builtin: the exception of Python; see OptionError.
[[noreturn]] void refuse(ErrorCode code, const std::string& what, const char* builtin);

Thing makeThing(const OptionValue& value);
Thing makeContainer(Container::Kind kind, Things items);
Thing makeContainer(Container container);
const Container* containerOf(const Thing& thing);
/// nullptr where it has another type.
template <class T>
const T* scalarOf(const Thing& thing) {
  const OptionValue* value = std::get_if<OptionValue>(&thing);
  return value == nullptr ? nullptr : value->as<T>();
}
/// What a setter is given. Throws E0702 for what is no value of an option; name: of the expression.
OptionValue optionOf(const Thing& thing, const std::string& name);
/// "a list", "text", ...
std::string kindOf(const Thing& thing);
/// Is it what Python takes for true?
bool isTrue(const Thing& thing);
/// What a loop runs over. Throws E0702 where it is nothing of that kind, and for a set, whose order Python does not
/// say.
Things itemsOf(const Thing& thing);
/// The same where the order does not matter.
Things itemsInAnyOrder(const Thing& thing);
/// Does it have neither text nor equals, as ranges and iterators?
bool isLazy(const Container& container);
/// Where a set or a map has the item, or the name; equal ones are one. Throws E0702 for what sets cannot have.
std::optional<size_t> placeIn(const Container& container, const Thing& item);
void insertItem(Container& set, const Thing& item);
void insertPair(Container& map, const Thing& name, Thing value);
/// What it costs to look through the value, as Budget counts.
size_t costOf(const Thing& thing);

// Operators (arithmetic.cc). Throw E0702 where Python raises.
Thing binaryOf(const std::string& op, const Thing& left, const Thing& right, Budget& budget);
Thing unaryOf(const std::string& op, const Thing& operand);
bool compared(const std::string& op, const Thing& left, const Thing& right);
bool equalThings(const Thing& left, const Thing& right);
/// index: of a list, a string or a map.
Thing itemAt(const Thing& what, const Thing& index);
Thing sliceOf(const Thing& what, const Thing& begin, const Thing& end, const Thing& step);
/// A whole number that fits; nothing for other values.
std::optional<int64_t> wholeNumberOf(const Thing& thing);
double realOf(const OptionValue& value);
bool isNumber(const Thing& thing);

// Functions and methods of Python (functions.cc). Throw E0701 for unknown names, E0702 where Python raises.
bool isFunction(const std::string& name);
Thing callFunction(const std::string& name, Things arguments, NamedThings named, Budget& budget);
/// Of text or of a container.
Thing resultOfMethod(const Thing& owner, const std::string& name, Things arguments, NamedThings named, Budget& budget);

// Text (formats.cc). Throw E0702 for what has no text that all versions of Python agree on.
std::string plainTextOf(const Thing& thing);
std::string representationOf(const Thing& thing);
/// By a format specification such as ">8.2f".
std::string formatted(const Thing& thing, const std::string& format);
/// text % arguments
std::string percentFormatted(const std::string& text, const Thing& arguments);
/// text.format(...)
std::string braceFormatted(const std::string& text, const Things& arguments, const NamedThings& named);
/// Text as its code points, each in UTF-8.
std::vector<std::string> codePointsOf(const std::string& text);

}  // namespace abele::host

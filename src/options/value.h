// The value of an option from setters, configuration files and JSON, and its text.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "abele/options.h"
#include "base/error.h"

namespace abele::options {

/// The kind of fault in an argument, name or call that options refuse. Front ends may use different exceptions for them
/// (bind/errors.cc).
enum class Refused : uint8_t { kOtherwise, kCondition, kValue, kType, kName, kConfiguration };

/// Refuses an argument, name or call.
class OptionError : public UserError {
 public:
  OptionError(ErrorCode code, Message message, Refused refused)
      : UserError(code, std::move(message)), refused_(refused) {}
  Refused refused() const { return refused_; }

 private:
  Refused refused_;
};

struct OptionValue;
using OptionList = std::vector<OptionValue>;
using OptionMap = std::map<std::string, OptionValue>;

/// A member of an enumeration: "OutputMode", "All", 2.
struct EnumMember {
  std::string type, name;
  int64_t value = 0;
  bool operator==(const EnumMember&) const = default;
};

/// Objects that calls in configuration files build.
using OptionObject = std::variant<Stage, Phase, ExecutionStrategy, TensorLocationSettings>;

struct OptionValue {
  using Variant = std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, OptionList, OptionMap,
                               EnumMember, std::shared_ptr<const OptionObject>>;
  OptionValue() = default;
  template <class T>
    requires std::is_constructible_v<Variant, T>
  explicit OptionValue(T given) : value(std::move(given)) {}
  explicit OptionValue(const char* text) : value(std::string(text)) {}

  template <class T>
  const T* as() const {
    return std::get_if<T>(&value);
  }
  template <class T>
  const T* object() const {
    const auto* held = as<std::shared_ptr<const OptionObject>>();
    return held == nullptr ? nullptr : std::get_if<T>(held->get());
  }
  bool isNone() const { return std::holds_alternative<std::monostate>(value); }
  /// JSON. A member of an enumeration is the string "OutputMode.All", and an object is the text of its calls.
  std::string text() const;
  /// "bool", "int", "float", "str", "container", "map"; "" for other values.
  const char* kind() const;

  Variant value;
};

inline bool operator==(const OptionValue& a, const OptionValue& b) { return a.text() == b.text(); }

/// The schedules that a user may choose by name, in the order of schedule/schedules.def: all but kAuto and kDefault.
const std::vector<std::pair<std::string, Schedule>>& schedulesByName();

std::string quoted(const std::string& text);
std::string textOf(const Stage& stage);
std::string textOf(const Phase& phase);
std::string textOf(const ExecutionStrategy& strategy);
std::string textOf(const TensorLocationSettings& settings);

/// Throws E0702 if the enumeration has no such member.
OptionValue member(const std::string& type, int64_t value);
OptionValue member(const std::string& type, const std::string& name);
/// The member with a name such as "OutputMode.All"; nothing for other text.
std::optional<OptionValue> memberNamed(const std::string& text);

// C++ values as option values.
inline OptionValue toValue(bool value) { return OptionValue(value); }
inline OptionValue toValue(int64_t value) { return OptionValue(value); }
inline OptionValue toValue(uint64_t value) { return OptionValue(value); }
inline OptionValue toValue(double value) { return OptionValue(value); }
inline OptionValue toValue(const std::string& value) { return OptionValue(value); }
template <class T>
OptionValue toValue(const std::vector<T>& values) {
  OptionList list;
  for (const T& value : values) list.push_back(toValue(value));
  return OptionValue(std::move(list));
}
template <class T>
OptionValue toValue(const std::map<std::string, T>& values) {
  OptionMap map;
  for (const auto& [name, value] : values) map.emplace(name, toValue(value));
  return OptionValue(std::move(map));
}
template <class T>
OptionValue toValue(const std::optional<T>& value) {
  return value ? toValue(*value) : OptionValue();
}
inline OptionValue toValue(const ExecutionStrategy& strategy) {
  return OptionValue(std::make_shared<const OptionObject>(strategy));
}
inline OptionValue toValue(const TensorLocationSettings& settings) {
  return OptionValue(std::make_shared<const OptionObject>(settings));
}
OptionValue toValue(const Setting& setting);
/// Lists and maps of mixed values become text.
Setting toSetting(const OptionValue& value);

}  // namespace abele::options

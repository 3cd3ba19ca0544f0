// What abele::Options holds: values by key, checked against the table of options.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "options/rows.h"

namespace abele {

struct Options::Values {
  /// Defaults of the table and OpenMPI's process, then those of POPTORCH_CACHE_DIR and POPTORCH_DEFAULT_OPTIONS.
  explicit Values(bool with_environment = true);

  /// One call of a setter. Throws E0701 for a name that does not exist, E0702 for an argument outside of what the table
  /// allows, E0707 when frozen.
  void call(const std::string& path, std::vector<host::OptionValue> arguments,
            std::vector<std::pair<std::string, host::OptionValue>> named = {});
  /// opts.key = value: an option that has a value gets another one of the same kind. Throws as call.
  void assign(const std::string& group, const std::string& key, host::OptionValue value);
  void requireNotFrozen(const std::string& name) const;

  /// Of all options that have a value.
  std::vector<std::string> keys() const;
  /// nullptr where the option has no value.
  const host::OptionValue* find(const std::string& key) const;
  const host::OptionValue* find(const std::string& group, const std::string& key) const;
  void set(const std::string& group, const std::string& key, host::OptionValue value);
  void erase(const std::string& key);
  /// The value as the key holds it: a number as the member of its enumeration, a map as an anchor or as location
  /// settings. Throws E0702 for one that is none.
  host::OptionValue typed(const std::string& key, host::OptionValue value) const;
  /// The items of a list or map; none where the key has no value.
  host::OptionList list(const std::string& key) const;
  host::OptionMap map(const std::string& key) const;
  /// What a checked call of a setter stores, as its row says.
  void store(const host::OptionRow& row, const host::OptionList& arguments);
  /// An expert setting; nullptr where it has no value.
  const host::OptionValue* expert(const std::string& name) const;

  /// The value of a key, as a type of include/abele/options.h.
  template <class T>
  T get(const std::string& key) const;

  struct Entry {
    std::string group, key;
    host::OptionValue value;
  };
  std::vector<Entry> entries;  // in the order in which they were given
  host::OptionMap popart;
  ExecutionStrategy strategy = PipelinedExecution();
  bool frozen = false;
};

/// Inside the public classes.
struct OptionsAccess {
  static std::map<std::string, int64_t>& values(TensorLocationSettings& settings) { return settings.values_; }
  static const Options::Values& values(const Options& options) { return *options.values_; }
  static Options of(const Options::Values& values) {
    Options options;
    *options.values_ = values;
    options.values_->frozen = false;
    return options;
  }
};

namespace host {

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

/// A whole number or a flag as T: negative ones wrap to uint64_t, and those beyond int64_t become its largest.
template <class T>
std::optional<T> integer(const OptionValue& value) {
  if (value.as<bool>()) return *value.as<bool>();
  if (value.as<int64_t>()) return static_cast<T>(*value.as<int64_t>());
  if (!value.as<uint64_t>()) return std::nullopt;
  constexpr uint64_t kMost = std::numeric_limits<T>::max();
  return static_cast<T>(std::min(*value.as<uint64_t>(), kMost));
}

/// Checks arguments against a row: those named join the positional ones, defaults are filled in, numbers and members
/// get the type of the row.
OptionList checkedArguments(const OptionRow& row, std::vector<OptionValue> positional,
                            std::vector<std::pair<std::string, OptionValue>> named);
/// "IPU3" -> 3; -1 for other text.
int64_t deviceOf(const std::string& name);
/// nullptr when there is no such setter.
const OptionRow* findRow(const std::string& path);
/// Of all setters, as findRow takes them.
std::vector<std::string> setterPaths();
/// A setter of TensorLocationSettings.
void setLocation(std::map<std::string, int64_t>& values, const std::string& path, std::vector<OptionValue> arguments);

/// Stores what a setter of kind kWritten was given (written.cc).
void callWritten(Options::Values& values, const OptionRow& row, const OptionList& arguments);
/// Throws E0701 for an unknown expert setting, E0702 for a value that is none of its own.
void validateExpert(const OptionMap& settings);

/// Applies the lines of a configuration file, or none where one cannot be read (E0702): calls of setters and
/// assignments with literals, lists, maps, members of enumerations and strategies. Python reads more
/// (_options_text.py).
void applyConfigText(Options::Values& values, const std::string& text, const std::string& file_name);
/// Applies {"dotted.setter": arguments}. Throws E0702 where it is none.
void applyJson(Options::Values& values, const std::string& text);
/// What the text of an execution strategy, or of tensor location settings, builds. Throws E0702.
OptionValue parseObject(const std::string& text);

/// JSON of the setters that make these values from defaults.
std::string toJson(const Options::Values& values);
/// All values, for people.
std::string toText(const Options::Values& values);

}  // namespace host

template <class T>
T Options::Values::get(const std::string& key) const {
  const host::OptionValue* found = find(key);
  if constexpr (host::IsOptional<T>::value) {
    const bool absent =
        found == nullptr || found->as<host::OptionMap>() != nullptr;  // a map by device has its own getter
    return absent ? T() : T(get<typename T::value_type>(key));
  } else {
    ABELE_REQUIRE(found != nullptr, E0702, {.what = cat("option ", key, " has no value")});
    if constexpr (std::is_enum_v<T>) {
      const auto* member = found->as<host::EnumMember>();
      ABELE_REQUIRE(member != nullptr, E0702, {.what = cat("option ", key, " is ", found->text())});
      return static_cast<T>(member->value);
    } else {
      if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, uint64_t>) {
        if (const auto number = host::integer<T>(*found)) return *number;
      }
      const T* value = found->as<T>();
      ABELE_REQUIRE(value != nullptr, E0702, {.what = cat("option ", key, " is ", found->text())});
      return *value;
    }
  }
}

}  // namespace abele

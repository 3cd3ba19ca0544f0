// The content of abele::Options: values by key, checked against the table of options.
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
  /// Takes the defaults of the table and OpenMPI's rank, then POPTORCH_CACHE_DIR and POPTORCH_DEFAULT_OPTIONS.
  explicit Values(bool with_environment = true);

  /// Calls a setter. Throws E0701 for an unknown name, E0702 for an argument that the table does not allow, E0707 if
  /// the options are frozen.
  void call(const std::string& path, std::vector<options::OptionValue> arguments,
            std::vector<std::pair<std::string, options::OptionValue>> named = {});
  /// Replaces the value of an option by one of the same kind: opts.key = value. Throws the errors of call.
  void assign(const std::string& group, const std::string& key, options::OptionValue value);
  void requireNotFrozen(const std::string& name) const;

  /// The keys of all options that have a value.
  std::vector<std::string> keys() const;
  /// Returns nullptr if the option has no value.
  const options::OptionValue* find(const std::string& key) const;
  const options::OptionValue* find(const std::string& group, const std::string& key) const;
  void set(const std::string& group, const std::string& key, options::OptionValue value);
  void erase(const std::string& key);
  /// The value converted to the type of the key: a number to the member of its enumeration, a map to an anchor or to
  /// location settings. Throws E0702 if that is not possible.
  options::OptionValue typed(const std::string& key, options::OptionValue value) const;
  /// The items of a list or map; empty if the key has no value.
  options::OptionList list(const std::string& key) const;
  options::OptionMap map(const std::string& key) const;
  /// Stores the checked arguments of a setter by the rules of its row.
  void store(const options::OptionRow& row, const options::OptionList& arguments);
  /// An expert setting; nullptr if it has no value.
  const options::OptionValue* expert(const std::string& name) const;

  /// The value of a key, as a type of include/abele/options.h.
  template <class T>
  T get(const std::string& key) const;

  struct Entry {
    std::string group, key;
    options::OptionValue value;
  };
  std::vector<Entry> entries;  // in the order in which they were set
  options::OptionMap popart;
  ExecutionStrategy strategy = PipelinedExecution();
  bool frozen = false;
};

/// Access to the private parts of the public classes.
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

namespace options {

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

/// A whole number or a flag as T. Negative numbers wrap in uint64_t; numbers beyond int64_t become the largest int64_t.
template <class T>
std::optional<T> integer(const OptionValue& value) {
  if (value.as<bool>()) return *value.as<bool>();
  if (value.as<int64_t>()) return static_cast<T>(*value.as<int64_t>());
  if (!value.as<uint64_t>()) return std::nullopt;
  constexpr uint64_t kMost = std::numeric_limits<T>::max();
  return static_cast<T>(std::min(*value.as<uint64_t>(), kMost));
}

/// Checks arguments against a row: merges named arguments into the positional ones, adds defaults, and converts numbers
/// and members to the types of the row.
OptionList checkedArguments(const OptionRow& row, std::vector<OptionValue> positional,
                            std::vector<std::pair<std::string, OptionValue>> named);
/// "IPU3" -> 3; -1 for other text.
int64_t deviceOf(const std::string& name);
/// Returns nullptr if no setter has this path.
const OptionRow* findRow(const std::string& path);
/// The paths of all setters, as findRow takes them.
std::vector<std::string> setterPaths();
/// Calls a setter of TensorLocationSettings.
void setLocation(std::map<std::string, int64_t>& values, const std::string& path, std::vector<OptionValue> arguments);

/// Stores the arguments of a setter of kind kWritten (written.cc).
void callWritten(Options::Values& values, const OptionRow& row, const OptionList& arguments);
/// Throws E0701 for an unknown expert setting, E0702 for a value that it cannot have.
void validateExpert(const OptionMap& settings);

/// Applies the lines of a configuration file: calls of setters and assignments with literals, lists, maps, members of
/// enumerations and strategies. Applies none of them if one cannot be read (E0702). Python reads more
/// (_options_text.py).
void applyConfigText(Options::Values& values, const std::string& text, const std::string& file_name);
/// Applies {"dotted.setter": arguments}. Throws E0702 for text that is not such an object.
void applyJson(Options::Values& values, const std::string& text);
/// Builds the object that the text of a strategy, or of tensor location settings, describes. Throws E0702.
OptionValue parseObject(const std::string& text);

/// JSON of the setter calls that turn the defaults into these values.
std::string toJson(const Options::Values& values);
/// All values, for people.
std::string toText(const Options::Values& values);

}  // namespace options

template <class T>
T Options::Values::get(const std::string& key) const {
  const options::OptionValue* found = find(key);
  if constexpr (options::IsOptional<T>::value) {
    const bool absent =
        found == nullptr || found->as<options::OptionMap>() != nullptr;  // a map by device has its own getter
    return absent ? T() : T(get<typename T::value_type>(key));
  } else {
    ABELE_REQUIRE(found != nullptr, E0702, {.what = cat("option ", key, " has no value")});
    if constexpr (std::is_enum_v<T>) {
      const auto* member = found->as<options::EnumMember>();
      ABELE_REQUIRE(member != nullptr, E0702, {.what = cat("option ", key, " is ", found->text())});
      return static_cast<T>(member->value);
    } else {
      if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, uint64_t>) {
        if (const auto number = options::integer<T>(*found)) return *number;
      }
      const T* value = found->as<T>();
      ABELE_REQUIRE(value != nullptr, E0702, {.what = cat("option ", key, " is ", found->text())});
      return *value;
    }
  }
}

}  // namespace abele

// The table of options (options.json) as data; rows.cc is generated from it.
#pragma once

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "options/value.h"

namespace abele::options {

enum class OptionKind {
  kValue,     // stored under the key
  kOnDemand,  // stored under the key, without a default
  kPopart,    // stored as an expert setting
  kIgnored,   // deprecated: only a warning
  kWritten,   // a function of written.cc stores it
};

inline constexpr int64_t kNoLeast = std::numeric_limits<int64_t>::min();
inline constexpr int64_t kNoMost = std::numeric_limits<int64_t>::max();

struct OptionParameter {
  std::string name;
  std::string type;  // type in the column "parameters"; "int?" may be None
  bool has_default = false;
  OptionValue default_value;
  bool spread = false;  // takes all remaining positional arguments
  int64_t least = kNoLeast, most = kNoMost, multiple = 1;
  std::vector<int64_t> values;                              // allowed values; empty: all
  std::vector<std::pair<OptionValue, OptionValue>> stored;  // argument -> the value that is stored for it
  std::string stored_as;  // the value is stored as a map with this one key; empty: stored directly
  std::string key;        // its own key, if a setter has several; empty: the row's
};

struct OptionRow {
  std::string path;  // "Training.gradientAccumulation"
  std::string group;
  std::string key;
  OptionKind kind = OptionKind::kValue;
  std::vector<OptionParameter> parameters;
  std::vector<std::pair<std::string, OptionValue>> implies;  // key -> value that a call sets too
  std::optional<Refused>
      refused;  // kind of the error for a bad argument; empty: kCondition for a wrong type, kOtherwise for a number
  bool returns_self = true;  // Python's setter; else None
  const char* spec = "";     // page and section of the specification: "options.md 2"
  const char* description = "";
};

struct OptionDefault {
  std::string group, key;
  OptionValue value;
};

/// A stored value other than an expert setting. type: from the column "type", or from its only parameter.
struct OptionKey {
  std::string group, key, type;
  bool run_time = false;  // also applies to a compiled program; false: is part of the program
};

struct OptionEnum {
  std::string name;
  std::vector<std::pair<std::string, int64_t>> members;
  std::vector<std::string> texts;  // Python's values of the members, if they are strings
  bool in_python = true;
  const char* meaning = "";
};

/// The effect of an expert setting on the device: "popart_effects" of options.json.
enum class ExpertEffect { kHonoured, kOnly, kLike, kHint };

struct ExpertSetting {
  std::string kind;              // a kind of OptionValue::kind()
  int64_t number_of_values = 0;  // number of members of its enumeration; 0: not an enumeration
  ExpertEffect effect = ExpertEffect::kHint;
  std::vector<std::string> values;  // kOnly: as JSON
  std::string option;               // kLike: the path of the option that must agree
  bool run_time = false;            // as in OptionKey
};

const std::vector<OptionRow>& optionRows();
const std::vector<OptionDefault>& optionDefaults();
const std::vector<OptionKey>& optionKeys();
const std::vector<OptionEnum>& optionEnums();
const std::map<std::string, ExpertSetting>& expertSettings();
/// Defaults of the expert settings.
const OptionMap& expertDefaults();

}  // namespace abele::options

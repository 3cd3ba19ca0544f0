// The table of options (options.json) as data; rows.cc is generated from it.
#pragma once

#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "options/value.h"

namespace abele::host {

enum class OptionKind {
  kValue,     // stored under the key
  kOnDemand,  // the same, without a default
  kPopart,    // stored as an expert setting
  kWritten,   // a function of written.cc stores it
};

inline constexpr int64_t kNoLeast = std::numeric_limits<int64_t>::min();
inline constexpr int64_t kNoMost = std::numeric_limits<int64_t>::max();

struct OptionParameter {
  std::string name;
  std::string type;  // of the column "parameters"; "int?" may be None
  bool has_default = false;
  OptionValue default_value;
  bool spread = false;  // takes all positional arguments that are left
  int64_t least = kNoLeast, most = kNoMost, multiple = 1;
  std::vector<int64_t> values;  // empty: all
};

struct OptionRow {
  std::string path;  // "Training.gradientAccumulation"
  std::string group;
  std::string key;
  OptionKind kind = OptionKind::kValue;
  std::vector<OptionParameter> parameters;
};

struct OptionDefault {
  std::string group, key;
  OptionValue value;
};

struct OptionEnum {
  std::string name;
  std::vector<std::pair<std::string, int64_t>> members;
};

/// What the device does with an expert setting: "popart_effects" of options.json.
enum class ExpertEffect { kHonoured, kOnly, kLike, kHint };

struct ExpertSetting {
  std::string kind;              // of OptionValue::kind()
  int64_t number_of_values = 0;  // of the enumeration that it is a member of; 0: none
  ExpertEffect effect = ExpertEffect::kHint;
  std::vector<std::string> values;  // kOnly: as JSON
  std::string option;               // kLike: the path of the option that must agree
};

const std::vector<OptionRow>& optionRows();
const std::vector<OptionDefault>& optionDefaults();
const std::vector<OptionEnum>& optionEnums();
const std::map<std::string, ExpertSetting>& expertSettings();
/// Defaults of the expert settings.
const OptionMap& expertDefaults();

}  // namespace abele::host

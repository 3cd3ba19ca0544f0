// Text of option values, and enumerations by name.
#include "options/value.h"

#include "abele/placement.h"
#include "base/error.h"
#include "base/joined.h"
#include "options/rows.h"

namespace abele::options {
namespace {

const OptionEnum& enumOf(const std::string& type) {
  for (const OptionEnum& each : optionEnums())
    if (each.name == type) return each;
  throwUser(ErrorCode::E0701, {.what = cat("there is no enumeration ", type)});
}

std::string membersOf(const OptionEnum& type) {
  return joined(type.members, [](const auto& each) { return each.first; });
}

std::string phasesText(const ExecutionStrategy& strategy) {
  std::vector<Phase> phases;
  for (size_t i = 0; i < strategy.stages.size(); ++i) {
    while (static_cast<int>(phases.size()) <= strategy.phase_of[i])
      phases.push_back(Phase(std::initializer_list<Stage>()));
    phases.back().stages.push_back(strategy.stages[i]);
  }
  return joined(phases, [](const Phase& phase) { return textOf(phase); });
}

std::string scheduleText(Schedule schedule) {
  for (const auto& [name, each] : schedulesByName())
    if (each == schedule) return name;
  return schedule == Schedule::kAuto ? "auto" : schedule == Schedule::kDefault ? "default" : "";
}

struct Printer {
  std::string operator()(std::monostate) const { return "null"; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return cat(value); }
  std::string operator()(uint64_t value) const { return cat(value); }
  std::string operator()(double value) const {
    std::string text = cat(value);
    if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
    return text;
  }
  std::string operator()(const std::string& value) const { return quoted(value); }
  std::string operator()(const OptionList& list) const { return cat("[", joined(list, &OptionValue::text), "]"); }
  std::string operator()(const OptionMap& map) const {
    return cat("{", joined(map, [](const auto& item) { return cat(quoted(item.first), ": ", item.second.text()); }),
               "}");
  }
  std::string operator()(const EnumMember& value) const { return cat("\"", value.type, ".", value.name, "\""); }
  std::string operator()(const std::shared_ptr<const OptionObject>& object) const {
    return quoted(std::visit([](const auto& held) { return textOf(held); }, *object));
  }
};

}  // namespace

const std::vector<std::pair<std::string, Schedule>>& schedulesByName() {
#define ABELE_SCHEDULE(...)
#define ABELE_PIPELINE(kind, name, ...) {name, Schedule::kind},
  static const std::vector<std::pair<std::string, Schedule>> schedules = {
#include "schedule/schedules.def"
  };
  return schedules;
}

std::string quoted(const std::string& text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      out += {'\\', c};
    else if (static_cast<unsigned char>(c) < 0x20)
      out += {'\\', 'u', '0', '0', kHex[c >> 4], kHex[c & 15]};
    else
      out += c;
  }
  return out + "\"";
}

std::string textOf(const Stage& stage) {
  const std::string device = stage.device_index < 0 ? "" : cat(".ipu(", stage.device_index, ")");
  return cat("Stage(", joined(stage.blocks, quoted), ")", device);
}

std::string textOf(const Phase& phase) {
  return cat("Phase(", joined(phase.stages, [](const Stage& stage) { return textOf(stage); }), ")");
}

std::string textOf(const ExecutionStrategy& strategy) {
  const bool phased = !strategy.phase_of.empty();
  std::string arguments;
  if (phased)
    arguments = phasesText(strategy);
  else if (strategy.stages.empty())
    arguments =
        cat("AutoStage.", member("AutoStage", static_cast<int64_t>(strategy.auto_stage)).as<EnumMember>()->name);
  else
    arguments = joined(strategy.stages, [](const Stage& stage) { return textOf(stage); });
  std::string text = cat(phased ? strategy.alternating ? "ParallelPhasedExecution" : "SerialPhasedExecution"
                         : strategy.pipelined ? "PipelinedExecution"
                                              : "ShardedExecution",
                         "(", arguments, ")");
  if (strategy.split_devices == kMeasuredDevices) text += ".devices(\"measured\")";
  if (strategy.split_devices > 0) text += cat(".devices(", strategy.split_devices, ")");
  if (strategy.pipeline_schedule != Schedule::kDefault)
    text += cat(".schedule(", quoted(scheduleText(strategy.pipeline_schedule)), ")");
  if (!strategy.stage_costs.empty()) text += cat(".costs(", quoted(strategy.stage_costs), ")");
  if (strategy.recomputes) text += ".recompute()";
  if (strategy.recomputes_to_fit) text += ".recompute(\"fit\")";
  if (strategy.separate_backward_phase) text += ".useSeparateBackwardPhase()";
  if (strategy.tensors_liveness != Liveness::kAlwaysLive) {
    const OptionValue liveness = member("Liveness", static_cast<int64_t>(strategy.tensors_liveness));
    text += strategy.alternating ? ".sendTensorsOffChipAfterFwd()"
                                 : cat(".setTensorsLiveness(Liveness.", liveness.as<EnumMember>()->name, ")");
  }
  return text;
}

std::string textOf(const TensorLocationSettings& settings) {
  static const std::map<std::string, std::string> setters = {{"onChip", "useOnChipStorage"}};
  std::string text = "TensorLocationSettings()";
  for (const auto& [key, value] : settings.values()) {
    const bool is_flag = key.starts_with("use") || key == "onChip";
    const auto it = setters.find(key);
    text += cat(".", it == setters.end() ? key : it->second, "(",
                is_flag ? (value != 0 ? "True" : "False") : cat(value), ")");
  }
  return text;
}

std::string OptionValue::text() const { return std::visit(Printer(), value); }

const char* OptionValue::kind() const {
  if (as<bool>()) return "bool";
  if (as<int64_t>() || as<uint64_t>() || as<EnumMember>()) return "int";
  if (as<double>()) return "float";
  if (as<std::string>()) return "str";
  if (as<OptionList>()) return "container";
  if (as<OptionMap>()) return "map";
  return "";
}

OptionValue member(const std::string& type, int64_t value) {
  const OptionEnum& found = enumOf(type);
  for (const auto& [name, number] : found.members)
    if (number == value) return OptionValue(EnumMember{type, name, value});
  throwUser(ErrorCode::E0702, {.what = cat(value, " is no ", type), .expected = membersOf(found)});
}

OptionValue member(const std::string& type, const std::string& name) {
  const OptionEnum& found = enumOf(type);
  for (const auto& [known, number] : found.members)
    if (known == name) return OptionValue(EnumMember{type, name, number});
  throwUser(ErrorCode::E0701, {.what = cat(type, " has no member ", name), .expected = membersOf(found)});
}

std::optional<OptionValue> memberNamed(const std::string& text) {
  const size_t dot = text.find('.');
  if (dot == std::string::npos) return std::nullopt;
  for (const OptionEnum& each : optionEnums())
    for (const auto& [name, number] : each.members)
      if (text.compare(0, dot, each.name) == 0 && text.compare(dot + 1, std::string::npos, name) == 0)
        return OptionValue(EnumMember{each.name, name, number});
  return std::nullopt;
}

OptionValue toValue(const Setting& setting) {
  return std::visit(
      [](const auto& held) {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::map<std::string, bool>>)
          return toValue<bool>(held);
        else
          return toValue(held);
      },
      setting);
}

namespace {

std::string plainText(const OptionValue& value) {
  return value.as<std::string>() ? *value.as<std::string>() : value.text();
}

Setting listSetting(const OptionList& list) {
  std::vector<int64_t> numbers;
  std::vector<std::string> texts;
  for (const OptionValue& item : list) {
    if (item.as<int64_t>()) numbers.push_back(*item.as<int64_t>());
    texts.push_back(plainText(item));
  }
  return !list.empty() && numbers.size() == list.size() ? Setting(std::move(numbers)) : Setting(std::move(texts));
}

Setting mapSetting(const OptionMap& map) {
  std::map<std::string, bool> flags;
  std::map<std::string, std::string> texts;
  for (const auto& [name, item] : map) {
    if (item.as<bool>()) flags[name] = *item.as<bool>();
    texts[name] = plainText(item);
  }
  return !map.empty() && flags.size() == map.size() ? Setting(std::move(flags)) : Setting(std::move(texts));
}

}  // namespace

Setting toSetting(const OptionValue& value) {
  if (value.as<bool>()) return *value.as<bool>();
  if (value.as<int64_t>()) return *value.as<int64_t>();
  if (value.as<uint64_t>()) return static_cast<int64_t>(*value.as<uint64_t>());
  if (value.as<double>()) return *value.as<double>();
  if (value.as<OptionList>()) return listSetting(*value.as<OptionList>());
  if (value.as<OptionMap>()) return mapSetting(*value.as<OptionMap>());
  return plainText(value);
}

}  // namespace abele::options

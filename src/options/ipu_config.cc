#include "abele/ipu_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/joined.h"
#include "base/json_text.h"
#include "base/whole_file.h"
#include "options/ipu_config.h"
#include "options/notes.h"
#include "options/value.h"

namespace abele {
namespace options {
namespace {

constexpr std::string_view kInference = "inference_";
constexpr double kDefaultProportion = 0.2;
const std::vector<std::string> kOutputModes = {"all", "sum", "final", "default"};

[[noreturn]] void refuseSetting(const std::string& what, Refused refused = Refused::kValue) {
  throw OptionError(ErrorCode::E0702, {.what = what}, refused);
}
[[noreturn]] void refuseTogether(const std::string& what) { refuseSetting(what, Refused::kConfiguration); }

enum class SettingKind { kInt, kSeed, kBool, kText, kInts, kFloats, kMap };
constexpr const char* kKinds[] = {
    "int", "int", "bool", "str", "list of int", "float or list of float", "dict with str keys"};

struct Setting {
  const char* name;
  SettingKind kind;
  IpuSettings otherwise = nullptr;  // the default; null: the value follows from others, or is absent
  std::optional<double> least = {};
  bool is_optional = false, by_mode = false;
  bool is_consecutive = false;  // the IPUs that have pieces are consecutive
};

const std::vector<Setting>& settings() {
  const auto factor = [](const char* name) {
    return Setting{.name = name, .kind = SettingKind::kInt, .least = 1, .is_optional = true, .by_mode = true};
  };
  const auto splits = [](const char* name) {
    return Setting{.name = name,
                   .kind = SettingKind::kInts,
                   .least = 0,
                   .is_optional = true,
                   .by_mode = true,
                   .is_consecutive = true};
  };
  static const std::vector<Setting> kSettings = {
      {.name = "replication_factor", .kind = SettingKind::kInt, .otherwise = 1, .least = 1, .by_mode = true},
      {.name = "gradient_accumulation_steps", .kind = SettingKind::kInt, .otherwise = 1, .least = 1},
      {.name = "layers_per_ipu",
       .kind = SettingKind::kInts,
       .otherwise = IpuSettings::array({-1}),
       .least = -1,
       .by_mode = true},
      {.name = "ipus_per_replica", .kind = SettingKind::kInt, .least = 1, .by_mode = true},
      {.name = "optimizer_state_offchip", .kind = SettingKind::kBool, .otherwise = false},
      {.name = "replicated_tensor_sharding", .kind = SettingKind::kBool, .otherwise = false},
      {.name = "matmul_proportion",
       .kind = SettingKind::kFloats,
       .otherwise = kDefaultProportion,
       .least = 0,
       .by_mode = true},
      {.name = "enable_half_partials", .kind = SettingKind::kBool, .otherwise = true},
      factor("embedding_serialization_factor"),
      splits("serialized_embedding_splits_per_ipu"),
      factor("projection_serialization_factor"),
      splits("serialized_projection_splits_per_ipu"),
      {.name = "recompute_checkpoint_every_layer", .kind = SettingKind::kBool, .otherwise = false},
      {.name = "device_iterations", .kind = SettingKind::kInt, .otherwise = 1, .least = 1, .by_mode = true},
      {.name = "output_mode", .kind = SettingKind::kText, .otherwise = "final"},
      {.name = "seed", .kind = SettingKind::kSeed, .is_optional = true},
      {.name = "auto_loss_scaling", .kind = SettingKind::kBool, .otherwise = false},
      {.name = "executable_cache_dir", .kind = SettingKind::kText, .otherwise = ""},
      {.name = "explicit_ir_inference", .kind = SettingKind::kBool, .otherwise = false},
      {.name = "parallelize_kwargs", .kind = SettingKind::kMap, .otherwise = IpuSettings::object(), .by_mode = true},
      {.name = "execute_encoder_on_cpu_for_generation", .kind = SettingKind::kBool, .otherwise = false},
  };
  return kSettings;
}

/// The row of a setting or of its twin; null if the name is unknown.
const Setting* find(std::string_view name) {
  const bool is_twin = name.starts_with(kInference);
  if (is_twin) name.remove_prefix(kInference.size());
  const auto found = std::ranges::find(settings(), name, &Setting::name);
  return found == settings().end() || (is_twin && !found->by_mode) ? nullptr : &*found;
}

bool isWhole(const IpuSettings& value) {
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > kMost);
}

bool isOf(SettingKind kind, const IpuSettings& value) {
  switch (kind) {
    case SettingKind::kInt: return isWhole(value);
    case SettingKind::kSeed: return value.is_number_integer();
    case SettingKind::kBool: return value.is_boolean();
    case SettingKind::kText: return value.is_string();
    case SettingKind::kInts: return value.is_array() && std::ranges::all_of(value, isWhole);
    case SettingKind::kFloats:
      return value.is_number() || (value.is_array() && std::ranges::all_of(value, &IpuSettings::is_number));
    case SettingKind::kMap: return value.is_object();
  }
  return false;
}

/// Turns true and false into numbers, as Python treats them.
void makeNumber(IpuSettings& value) {
  if (value.is_boolean()) value = value.get<bool>() ? 1 : 0;
  if (value.is_array())
    for (IpuSettings& item : value)
      if (item.is_boolean()) item = item.get<bool>() ? 1 : 0;
}

std::string settingText(const IpuSettings& value) {
  return value.is_binary() ? "another value" : value.dump(-1, ' ', false, IpuSettings::error_handler_t::replace);
}

void requireConsecutive(const std::string& name, const IpuSettings& splits) {
  std::vector<size_t> used;
  for (size_t ipu = 0; ipu < splits.size(); ++ipu)
    if (splits[ipu] != 0) used.push_back(ipu);
  if (used.empty())
    refuseSetting(cat("IPUConfig.", name, " needs a piece on at least one IPU, got ", settingText(splits)));
  if (used.back() - used.front() + 1 != used.size())
    refuseSetting(cat("IPUConfig.", name, " needs its pieces on consecutive IPUs, got ", settingText(splits)));
}

/// "layers_per_ipu=[2,3] and ipus_per_replica=4"
std::string shown(const IpuSettings& all, bool for_inference, const std::vector<std::string>& names) {
  const auto text = [&](const std::string& each) {
    const std::string name = ipuSettingOf(each, for_inference);
    return cat(name, "=", settingText(all.at(name)));
  };
  return joined(names, text, " and ");
}

[[noreturn]] void refuseIpus(const IpuSettings& all, bool for_inference, const std::string& name,
                             Refused refused = Refused::kConfiguration) {
  refuseSetting(cat("IPUConfig: ", shown(all, for_inference, {name, "ipus_per_replica"}),
                    " are not about the same number of IPUs"),
                refused);
}

/// The setting for the mode: training or inference.
const IpuSettings& in(const IpuSettings& all, bool for_inference, const char* name) {
  return all.at(ipuSettingOf(name, for_inference));
}

void requireSameIpus(const IpuSettings& all, bool for_inference) {
  const auto ipus = in(all, for_inference, "ipus_per_replica").get<size_t>();
  const IpuSettings& proportion = in(all, for_inference, "matmul_proportion");
  const IpuSettings& layers = in(all, for_inference, "layers_per_ipu");
  if (proportion.is_array() && proportion.size() != ipus) refuseIpus(all, for_inference, "matmul_proportion");
  // A list with -1 is checked later, when the number of layers is known.
  if (std::ranges::find(layers, IpuSettings(-1)) == layers.end() && layers.size() != ipus)
    refuseIpus(all, for_inference, "layers_per_ipu");
}

void fillSerialization(IpuSettings& all, bool for_inference, const std::string& layer) {
  const std::string splits_name = cat("serialized_", layer, "_splits_per_ipu");
  const std::string factor_in_mode = ipuSettingOf(cat(layer, "_serialization_factor"), for_inference);
  const std::string splits_in_mode = ipuSettingOf(splits_name, for_inference);
  IpuSettings& factor = all[factor_in_mode];
  const IpuSettings& splits = all.at(splits_in_mode);
  if (factor.is_null() && splits.is_null()) factor = 1;
  if (splits.is_null()) return;
  if (!factor.is_null())
    refuseSetting(cat("IPUConfig: give ", factor_in_mode, " (the ", layer, " stays on one IPU) or ", splits_in_mode,
                      " (its pieces are placed one by one), not both; got ", settingText(factor), " and ",
                      settingText(splits)));
  if (splits.size() != in(all, for_inference, "ipus_per_replica").get<size_t>())
    refuseIpus(all, for_inference, splits_name, Refused::kValue);
}

/// Takes the given value, or the default if it is missing.
void setOr(IpuSettings& all, const IpuSettings& given, const std::string& name, IpuSettings otherwise) {
  const auto found = given.find(name);
  IpuSettings value = found != given.end() && !found->is_null() ? *found : std::move(otherwise);
  all[name] = checkedIpuSetting(name, std::move(value));
}

/// Returns true for settings that follow from others unless given.
bool isDerived(const std::string& name) {
  static const std::set<std::string> kDerived = {"ipus_per_replica",           "inference_layers_per_ipu",
                                                 "inference_ipus_per_replica", "inference_matmul_proportion",
                                                 "parallelize_kwargs",         "inference_parallelize_kwargs"};
  return kDerived.contains(name);
}

std::map<std::string, double> proportionsOf(const IpuSettings& all, bool for_inference) {
  const auto ipus = in(all, for_inference, "ipus_per_replica").get<size_t>();
  const IpuSettings& given = in(all, for_inference, "matmul_proportion");
  if (given.is_array() && given.size() != ipus) refuseIpus(all, for_inference, "matmul_proportion");
  std::map<std::string, double> proportions;
  for (size_t ipu = 0; ipu < ipus; ++ipu)
    proportions.emplace(cat("IPU", ipu), (given.is_array() ? given[ipu] : given).get<double>());
  return proportions;
}

template <class Number>
IpuSettings numberOf(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? IpuSettings(value) : IpuSettings();
}

IpuSettings boolOf(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto is = [&](const char* word) { return text == word; };
  if (std::ranges::any_of(std::array{"true", "1", "y", "yes"}, is)) return true;
  if (std::ranges::any_of(std::array{"false", "0", "n", "no"}, is)) return false;
  return nullptr;
}

/// "[1 2 3]" or "[1, 2, 3]"; null for other text.
template <class Number>
IpuSettings listOf(std::string_view text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return nullptr;
  IpuSettings list = IpuSettings::array();
  constexpr std::string_view kBetween = " \t,";
  text = text.substr(1, text.size() - 2);
  for (size_t at = text.find_first_not_of(kBetween); at != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    list.push_back(numberOf<Number>(text.substr(at, end - at)));
    if (list.back().is_null()) return nullptr;
    at = text.find_first_not_of(kBetween, end);
  }
  return list;
}

IpuSettings parsed(SettingKind kind, const std::string& text) {
  switch (kind) {
    case SettingKind::kInt:
    case SettingKind::kSeed: return numberOf<int64_t>(text);
    case SettingKind::kBool: return boolOf(text);
    case SettingKind::kText: return text;
    case SettingKind::kInts: return listOf<int64_t>(text);
    case SettingKind::kFloats: return text.starts_with('[') ? listOf<double>(text) : numberOf<double>(text);
    case SettingKind::kMap: return nullptr;
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> ipuSettingNames() {
  std::vector<std::string> names;
  for (const Setting& setting : settings()) {
    names.emplace_back(setting.name);
    if (setting.by_mode) names.push_back(cat(kInference, setting.name));
  }
  return names;
}

std::string ipuSettingOf(const std::string& name, bool for_inference) {
  const Setting* setting = find(name);
  return for_inference && setting != nullptr && setting->by_mode ? cat(kInference, name) : name;
}

IpuSettings checkedIpuSetting(const std::string& name, IpuSettings value) {
  const Setting& setting = *find(name);
  if (value.is_null() && setting.is_optional) return value;
  if (setting.kind != SettingKind::kBool && setting.kind != SettingKind::kText) makeNumber(value);
  const auto kind = static_cast<size_t>(setting.kind);
  if (!isOf(setting.kind, value))
    refuseSetting(cat("IPUConfig.", name, " takes ", kKinds[kind], setting.is_optional ? " or None" : "", ", got ",
                      settingText(value)),
                  Refused::kType);
  const auto isTooSmall = [&](const IpuSettings& item) { return item.get<double>() < *setting.least; };
  if (setting.least && (value.is_array() ? std::ranges::any_of(value, isTooSmall) : isTooSmall(value)))
    refuseSetting(cat("IPUConfig.", name, " takes values >= ", *setting.least, ", got ", settingText(value)));
  if (name == "output_mode" && std::ranges::find(kOutputModes, value.get<std::string>()) == kOutputModes.end())
    refuseSetting(cat("IPUConfig.", name, " is one of ", joined(kOutputModes), ", got ", settingText(value)));
  if (setting.is_consecutive) requireConsecutive(name, value);
  return value;
}

IpuSettings parseIpuSetting(const std::string& name, const std::string& text) {
  const Setting* setting = find(name);
  const IpuSettings value = setting == nullptr ? IpuSettings() : parsed(setting->kind, text);
  if (value.is_null())
    refuseSetting(setting == nullptr ? cat("IPUConfig has no settings ", name)
                                     : cat("IPUConfig.", name, " takes ", kKinds[static_cast<size_t>(setting->kind)],
                                           ", got the text ", text));
  return value;
}

IpuSettings completeIpuSettings(IpuSettings given) {
  for (const char* name :
       {"transformers_version", "optimum_version", "model_type", "_name_or_path", "name_or_path", "_commit_hash"})
    given.erase(name);
  std::vector<std::string> unknown;
  for (const auto& [name, value] : given.items())
    if (find(name) == nullptr) unknown.push_back(name);
  std::ranges::sort(unknown);
  if (!unknown.empty()) refuseTogether(cat("IPUConfig has no settings ", joined(unknown)));
  for (const char* name : {"replication_factor", "inference_replication_factor"})
    if (const auto found = given.find(name); found != given.end() && !isWhole(*found) && !found->is_boolean())
      refuseSetting(cat("IPUConfig.", name, " takes int, got ", settingText(*found)));
  IpuSettings all;
  for (const std::string& name : ipuSettingNames()) {
    if (isDerived(name)) continue;
    all[name] = checkedIpuSetting(name, given.contains(name) ? given[name] : find(name)->otherwise);
  }
  setOr(all, given, "inference_layers_per_ipu", all["layers_per_ipu"]);
  setOr(all, given, "ipus_per_replica", all["layers_per_ipu"].size());
  const IpuSettings layers = all["inference_layers_per_ipu"];
  const bool by_layers = all["ipus_per_replica"] == all["layers_per_ipu"].size() || layers != IpuSettings::array({-1});
  setOr(all, given, "inference_ipus_per_replica", by_layers ? IpuSettings(layers.size()) : all["ipus_per_replica"]);
  const IpuSettings proportion = all["matmul_proportion"];
  const bool fits = !proportion.is_array() || proportion.size() == all["inference_ipus_per_replica"];
  setOr(all, given, "inference_matmul_proportion", fits ? proportion : IpuSettings(kDefaultProportion));
  setOr(all, given, "parallelize_kwargs", IpuSettings::object());
  setOr(all, given, "inference_parallelize_kwargs", IpuSettings::object());
  validateIpuSettings(all);
  return all;
}

void validateIpuSettings(IpuSettings& all) {
  if (all.at("replicated_tensor_sharding") == true && all.at("replication_factor") == 1)
    note(log::Level::kWarn, "replicated_tensor_sharding has no effect with replication_factor=1");
  for (const bool for_inference : {false, true}) {
    requireSameIpus(all, for_inference);
    for (const char* layer : {"embedding", "projection"}) fillSerialization(all, for_inference, layer);
  }
}

std::vector<int64_t> layersPerIpu(const IpuSettings& all, bool for_inference, std::optional<int64_t> layers) {
  const auto refuseLayers = [&](const std::string& why) {
    refuseTogether(cat("IPUConfig: ", shown(all, for_inference, {"layers_per_ipu", "ipus_per_replica"}),
                       " cannot be used: ", why));
  };
  auto shares = in(all, for_inference, "layers_per_ipu").get<std::vector<int64_t>>();
  const auto ipus = in(all, for_inference, "ipus_per_replica").get<int64_t>();
  if (!layers) {
    if (std::ranges::find(shares, -1) != shares.end()) refuseLayers("the number of layers is needed to replace -1");
    return shares;
  }
  if (*layers < 0) refuseLayers(cat("the model has ", *layers, " layers"));
  if (ipus == 1) return {*layers};
  if (shares == std::vector<int64_t>{-1}) shares.assign(static_cast<size_t>(ipus), -1);
  if (static_cast<int64_t>(shares.size()) != ipus) refuseLayers("the lengths differ");
  std::optional<std::vector<int64_t>> dealt = dealtLayers(shares, *layers);
  if (!dealt) refuseLayers(cat("the model has ", *layers, " layers"));
  return *std::move(dealt);
}

std::optional<std::vector<int64_t>> dealtLayers(std::vector<int64_t> shares, int64_t layers) {
  int64_t open = 0, left = layers;
  for (const int64_t share : shares) {
    if (share < -1 || share > left) return std::nullopt;
    share == -1 ? ++open : left -= share;
  }
  if (left < 0 || (left > 0 && open == 0)) return std::nullopt;
  int64_t* last = nullptr;
  for (int64_t& share : shares)
    if (share == -1) {
      share = left / open;
      last = &share;
    }
  if (last != nullptr) *last += left % open;  // the remainder
  return shares;
}

namespace {

/// The settings that the original passes to its compiler, key by key. All are hints.
void setBackend(PopartOptions popart, bool explicit_ir) {
  constexpr int64_t kOverlapMemoryOptimized = 3, kJustInTime = 1;  // popart.AccumulateOuterFragmentSchedule, ...
  popart.set("disableGradAccumulationTensorStreams", true)
      .set("accumulateOuterFragmentSettings.schedule", kOverlapMemoryOptimized)
      .set("accumulateOuterFragmentSettings.excludedVirtualGraphs", std::vector<std::string>{"0"})
      .set("outlineThreshold", 10.0)
      .set("subgraphCopyingStrategy", kJustInTime)
      .set("scheduleNonWeightUpdateGradientConsumersEarly", true)
      .setPatterns({{"TiedGather", true}, {"TiedGatherAccumulate", true}, {"UpdateInplacePrioritiesForIpu", true}})
      .setEngineOptions({{"opt.useAutoloader", "true"}, {"target.syncReplicasIndependently", "true"}});
  if (explicit_ir) popart.set("enableExplicitIR", true);
}

}  // namespace

Options optionsOfIpuSettings(const IpuSettings& all, bool for_inference) {
  const bool training = !for_inference;
  const auto number = [&](const char* name) { return in(all, for_inference, name).get<int64_t>(); };
  const auto flag = [&](const char* name) { return all.at(name).get<bool>(); };
  if (flag("execute_encoder_on_cpu_for_generation"))
    refuseSetting("IPUConfig.execute_encoder_on_cpu_for_generation is not supported", Refused::kOtherwise);
  Options options;
  options.autoRoundNumIPUs(true)
      .replicationFactor(number("replication_factor"))
      .deviceIterations(number("device_iterations"))
      .setAvailableMemoryProportion(proportionsOf(all, for_inference))
      .setExecutionStrategy(training ? static_cast<ExecutionStrategy>(PipelinedExecution(AutoStage::kAutoIncrement))
                                     : ShardedExecution(AutoStage::kAutoIncrement));
  if (training) {
    options.Training()
        .gradientAccumulation(number("gradient_accumulation_steps"))
        .accumulationAndReplicationReductionType(ReductionType::kMean);
    if (flag("auto_loss_scaling")) options.Training().setAutomaticLossScaling(true);
  }
  constexpr std::pair<const char*, OutputMode> kModes[] = {{"all", OutputMode::kAll},
                                                           {"sum", OutputMode::kSum},
                                                           {"final", OutputMode::kFinal},
                                                           {"default", OutputMode::kDefault}};
  const auto asked = training ? all.at("output_mode").get<std::string>() : "all";
  for (const auto& [name, mode] : kModes)
    if (asked == name) options.outputMode(mode);
  if (const IpuSettings& seed = all.at("seed"); !seed.is_null() && seed != 0) options.randomSeed(seed.get<uint64_t>());
  const bool sharded = flag("replicated_tensor_sharding") && number("replication_factor") > 1;
  options.TensorLocations().setOptimizerLocation(
      TensorLocationSettings().useOnChipStorage(!flag("optimizer_state_offchip")).useReplicatedTensorSharding(sharded));
  const auto folder = all.at("executable_cache_dir").get<std::string>();
  if (!folder.empty() && folder != "disabled") options.enableExecutableCaching(folder);
  options.Precision().enableStochasticRounding(training);
  if (flag("enable_half_partials")) options.Precision().setPartialsType(FloatType::kHalf);
  setBackend(options.Popart(), for_inference && flag("explicit_ir_inference"));
  return options;
}

}  // namespace options

struct IpuConfig::Settings {
  options::IpuSettings all;
};

IpuConfig::IpuConfig(const std::string& json) {
  options::IpuSettings given = boundedJson(json);
  if (!given.is_object()) options::refuseSetting("an IPUConfig is a JSON object of settings");
  for (const char* name :
       {"sharded_execution_for_inference", "enable_half_first_order_momentum", "profile_dir", "use_popdist"})
    if (const auto old = given.find(name); old != given.end()) {
      if (*old != false && *old != "") options::note(log::Level::kWarn, cat("IPUConfig: ", name, " is deprecated"));
      given.erase(old);
    }
  settings_ = std::make_shared<const Settings>(Settings{options::completeIpuSettings(std::move(given))});
}

IpuConfig IpuConfig::read(const std::string& path) {
  const std::filesystem::path given = path;
  std::error_code error;  // ignored: the read below reports the failure
  const std::filesystem::path file = std::filesystem::is_directory(given, error) ? given / "ipu_config.json" : given;
  return IpuConfig(readWholeFile(file.string(), {}, kMostTextBytes));
}

std::string IpuConfig::toJson() const { return nlohmann::json(settings_->all).dump(2) + "\n"; }
Options IpuConfig::options(bool for_inference) const {
  return options::optionsOfIpuSettings(settings_->all, for_inference);
}
std::vector<int64_t> IpuConfig::layerDevices(int64_t num_layers, bool for_inference) const {
  const std::vector<int64_t> shares = options::layersPerIpu(settings_->all, for_inference, num_layers);
  std::vector<int64_t> devices;
  for (size_t ipu = 0; ipu < shares.size(); ++ipu)
    devices.insert(devices.end(), static_cast<size_t>(shares[ipu]), static_cast<int64_t>(ipu));
  return devices;
}

}  // namespace abele

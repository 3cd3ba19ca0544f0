// The settings of an IpuConfig (include/abele/ipu_config.h) for C++ and Python: their table, their rules, and their
// conversion to options. Errors are OptionErrors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "abele/options.h"

namespace abele::options {

/// All settings by name.
using IpuSettings = nlohmann::ordered_json;

/// Names in the order of Python's constructor. A setting for inference follows the setting for training.
std::vector<std::string> ipuSettingNames();
/// The setting's name; for inference "inference_<name>", if there is such a setting.
std::string ipuSettingOf(const std::string& name, bool for_inference);
/// The value in its stored form: true and false of numbers become 1 and 0. Throws if the setting cannot have the value.
/// Requires: the setting exists.
IpuSettings checkedIpuSetting(const std::string& name, IpuSettings value);
/// Reads a value such as "4", "true" or "[1 2 3]".
IpuSettings parseIpuSetting(const std::string& name, const std::string& text);
/// Completes the given settings: null and missing ones get defaults or values that follow from other settings. Drops
/// entries of published files that are not settings. Throws for unknown names and for settings that contradict each
/// other.
IpuSettings completeIpuSettings(IpuSettings given);
/// Throws if settings contradict each other, in training or in inference. Fills in the factors of serialization.
void validateIpuSettings(IpuSettings& settings);
/// layers_per_ipu with each -1 replaced. layers: number of layers of the model; nothing: the sum of layers_per_ipu.
/// Throws if the numbers do not add up.
std::vector<int64_t> layersPerIpu(const IpuSettings& settings, bool for_inference, std::optional<int64_t> layers);
/// Replaces each -1 by an equal share of the remaining layers. Nothing if the numbers do not add up to the layers.
std::optional<std::vector<int64_t>> dealtLayers(std::vector<int64_t> shares, int64_t layers);
Options optionsOfIpuSettings(const IpuSettings& settings, bool for_inference);

}  // namespace abele::options

// The settings of an IpuConfig (include/abele/ipu_config.h), in C++ and in Python: one table, its rules, and the
// options that they stand for. Errors are OptionErrors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "abele/options.h"

namespace abele::host {

/// All settings by name.
using IpuSettings = nlohmann::ordered_json;

/// Names, in the order of Python's constructor; a twin for inference follows its setting.
std::vector<std::string> ipuSettingNames();
/// "inference_layers_per_ipu" where the setting has a twin for inference, else the name.
std::string ipuSettingOf(const std::string& name, bool for_inference);
/// The value as it is held: true and false of numbers are 1 and 0. Throws where the setting cannot have it. Requires:
/// there is such a setting.
IpuSettings checkedIpuSetting(const std::string& name, IpuSettings value);
/// A value from "4", "true" or "[1 2 3]".
IpuSettings parseIpuSetting(const std::string& name, const std::string& text);
/// All settings of those that were given: null and missing ones have their defaults, or follow from others. What
/// published files hold beside settings is left out. Throws for unknown names, and where settings contradict each
/// other.
IpuSettings completeIpuSettings(IpuSettings given);
/// Throws where settings contradict each other, in training or in inference. Fills in the factors of serialization.
void validateIpuSettings(IpuSettings& settings);
/// layers_per_ipu without -1. layers: of the model; nothing: as many as layers_per_ipu says. Throws where they do not
/// fit.
std::vector<int64_t> layersPerIpu(const IpuSettings& settings, bool for_inference, std::optional<int64_t> layers);
/// -1 replaced by equal shares of the layers that the numbers leave. Nothing where they do not make up the layers.
std::optional<std::vector<int64_t>> dealtLayers(std::vector<int64_t> shares, int64_t layers);
Options optionsOfIpuSettings(const IpuSettings& settings, bool for_inference);

}  // namespace abele::host

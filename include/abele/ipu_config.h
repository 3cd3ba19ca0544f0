// For users of the library: settings of a pipeline in one JSON file, ipu_config.json. Published models of
// optimum-graphcore come with one. Read options.h first.
//
//   const auto config = abele::IpuConfig::read("bert/ipu_config.json");
//   const std::vector<int64_t> devices = config.layerDevices(12);  // beginBlock("layer 3", devices[3])
//   auto step = abele::trainingModel(net, forward, config.options(), optimizer);
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "abele/export.h"
#include "abele/options.h"

namespace abele {

/// Names and meaning of the settings: docs/reference/abele.md. A setting named inference_... applies to inference,
/// and the setting without this prefix to training. The split of embedding and projection into pieces and
/// parallelize_kwargs are hints without effect.
class ABELE_API IpuConfig {
 public:
  /// json: an object of settings by name. Missing settings have their defaults or follow from others. Throws E0702 for
  /// text that is not a JSON object, unknown settings, values out of range, and settings that contradict each other.
  explicit IpuConfig(const std::string& json = "{}");
  /// path: a file, or a folder with an ipu_config.json. Throws E0712, E0702.
  static IpuConfig read(const std::string& path);

  /// All settings by name, sorted: the content of the file.
  std::string toJson() const;
  /// The options for these settings. Options for inference use sharded execution and return all outputs. Throws E0702.
  Options options(bool for_inference = false) const;
  /// The device of each layer of a model, as in [0, 0, 1, 1, 1]. A -1 in layers_per_ipu takes an equal share of the
  /// remaining layers. Throws E0702 if the numbers do not add up.
  std::vector<int64_t> layerDevices(int64_t num_layers, bool for_inference = false) const;

 private:
  struct Settings;
  std::shared_ptr<const Settings> settings_;
};

}  // namespace abele

// Blocks that begin where forward reads the first tensor of a module. Behind abele/placement.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "abele/placement.h"
#include "model/access.h"

namespace abele::host {

/// Remembers the blocks of a module for as long as its tensors live. Throws E0708. Threads: safe.
void placeModules(const torch::nn::Module& module, const ModulePlacement& placement);
/// Throws E0708.
ModulePlacement layersPerIpu(const torch::nn::Module& module, const std::string& layers,
                             std::vector<int> layers_per_ipu, int first_ipu);

/// The blocks of one capture after the other. Threads: owner only.
class PlacedModules {
 public:
  /// module: may be null. tensors: of the module, in the order in which the capture counts them.
  PlacedModules(const torch::nn::Module* module, const std::vector<NamedTensor>& tensors);
  /// Before each run of forward.
  void begin();
  /// For capture::Request::reads_model; empty where nothing was placed.
  std::function<void(int32_t)> reader();

 private:
  void enter(int32_t block);

  ModulePlacement placement_;
  std::vector<int32_t> block_of_;  // by tensor: index in placement_, -1: of none
  int32_t current_ = -1;
};

}  // namespace abele::host

// Finds where forward reads the tensors of a module: the operators get the module's path, and its block begins there.
// Implements abele/placement.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "abele/placement.h"
#include "modules/module.h"

namespace abele::modules {

/// Remembers the blocks of a module while its tensors live. Throws E0708. Threads: safe.
void placeModules(const torch::nn::Module& module, const ModuleDevices::List& placement);
/// Throws E0708.
ModulePlacement layersPerIpu(const torch::nn::Module& module, const std::string& layers,
                             std::vector<int> layers_per_ipu, int first_ipu);

/// Number of the program's own blocks (abele::Block) that are open on this thread. No other block begins inside them.
int& openBlocks();

/// The scopes and blocks of one capture at a time. Threads: owner only.
class PlacedModules {
 public:
  /// module: may be null. tensors: those of the module, in the order of the capture's indices. ordered: values flow
  /// only to later stages, so a block that ended never begins again.
  PlacedModules(const torch::nn::Module* module, const std::vector<NamedTensor>& tensors, bool ordered);
  /// Call it before each run of forward.
  void begin();
  /// The function for capture::Request::reads_model.
  std::function<std::string(int32_t)> reader();

 private:
  int32_t blockFor(const std::vector<int32_t>& blocks) const;
  void enter(int32_t block);

  std::vector<std::string> scope_of_;  // by tensor: "encoder/0" of "encoder.0.weight"
  ModuleDevices::List placement_;
  /// By tensor: ascending indices in placement_; several if modules share the tensor. Empty without placements.
  std::vector<std::vector<int32_t>> blocks_of_;
  bool ordered_ = false;
  int32_t current_ = -1;
  std::vector<bool> was_read_;  // by placement, in this run of forward
};

}  // namespace abele::modules

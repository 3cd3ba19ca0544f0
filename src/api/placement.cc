#include "abele/placement.h"

#include "modules/placed_modules.h"

namespace abele::detail {

void placeModules(torch::nn::Module& module, const ModuleDevices& placement) {
  modules::placeModules(module, placement.list());
}
ModulePlacement layersPerIpu(const torch::nn::Module& module, const std::string& layers,
                             const std::vector<int>& layers_per_ipu, int first_ipu) {
  return modules::layersPerIpu(module, layers, layers_per_ipu, first_ipu);
}

}  // namespace abele::detail

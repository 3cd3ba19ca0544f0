// TorchScript modules, and blocks of modules.
#include "abele/script.h"

#include "abele/placement.h"
#include "modules/placed_modules.h"
#include "modules/script_module.h"

namespace abele {

std::shared_ptr<torch::nn::Module> moduleOf(const torch::jit::Module& script) {
  return modules::moduleOfScript(script);
}

namespace detail {

Weights weightsOfScript(const torch::jit::Module& script) {
  std::shared_ptr<torch::nn::Module> held = modules::moduleOfScript(script);
  return {*held, held};
}
StructuredForward forwardOfScript(const torch::jit::Module& script) { return modules::forwardOfScript(script); }
void placeModules(torch::nn::Module& module, const ModuleDevices& placement) {
  modules::placeModules(module, placement.list());
}
ModulePlacement layersPerIpu(const torch::nn::Module& module, const std::string& layers,
                             const std::vector<int>& layers_per_ipu, int first_ipu) {
  return modules::layersPerIpu(module, layers, layers_per_ipu, first_ipu);
}
void placeScript(const torch::jit::Module& script, const ModuleDevices& placement) {
  modules::placeScript(script, placement.list());
}

}  // namespace detail
}  // namespace abele

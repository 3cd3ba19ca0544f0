// TorchScript modules.
#include "abele/script.h"

#include "abele/placement.h"
#include "model/script_module.h"

namespace abele {

std::shared_ptr<torch::nn::Module> moduleOf(const torch::jit::Module& script) { return host::moduleOfScript(script); }

namespace detail {

Weights weightsOfScript(const torch::jit::Module& script) {
  std::shared_ptr<torch::nn::Module> held = host::moduleOfScript(script);
  return {*held, held};
}
StructuredForward forwardOfScript(const torch::jit::Module& script) { return host::forwardOfScript(script); }
void placeScript(const torch::jit::Module& script, const ModulePlacement& placement) {
  host::placeScript(script, placement);
}

}  // namespace detail
}  // namespace abele

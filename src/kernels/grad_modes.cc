#include "kernels/operator_forms.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

namespace abele::kernels {
namespace {

// The mode decides what the operator keeps for backward, and how it computes.
void rnnLayer(const c10::OperatorHandle& /*registered*/, torch::jit::Stack* stack) {
  static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mkldnn_rnn_layer", "");
  const c10::AutoGradMode mode(torch::jit::pop(*stack).toBool());
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

torch::Library makeGradModesLibrary() {
  torch::Library library(torch::Library::FRAGMENT, "abele_torch", std::nullopt, __FILE__, __LINE__);
  library.def(
      "mkldnn_rnn_layer(Tensor input, Tensor weight0, Tensor weight1, Tensor weight2, Tensor weight3, Tensor hx_, "
      "Tensor cx_, bool reverse, int[] batch_sizes, int mode, int hidden_size, int num_layers, bool has_biases, "
      "bool bidirectional, bool batch_first, bool train, bool grad_mode) -> (Tensor, Tensor, Tensor, Tensor)");
  library.impl("mkldnn_rnn_layer", c10::DispatchKey::CPU, torch::CppFunction::makeFromBoxedFunction<&rnnLayer>());
  return library;
}

}  // namespace

void registerGradModeOperators() { static const torch::Library library = makeGradModesLibrary(); }

}  // namespace abele::kernels

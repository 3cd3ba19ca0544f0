#include "capture/autograd_bridge.h"

#include <limits>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

namespace abele::capture {

std::vector<at::Tensor> gradients(const at::Tensor& loss, const at::Tensor& loss_gradient,
                                  const std::vector<at::Tensor>& parameters) {
  return torch::autograd::grad({loss}, parameters, {loss_gradient}, /*retain_graph=*/false, /*create_graph=*/false,
                               /*allow_unused=*/true);
}

int64_t currentFunctionSequence() {
  const auto node = torch::autograd::get_current_node();
  // Gradient accumulators carry the largest number and belong to no operator of forward.
  if (!node || node->sequence_nr() >= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return -1;
  return static_cast<int64_t>(node->sequence_nr());
}

}  // namespace abele::capture

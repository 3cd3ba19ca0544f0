#include "capture/autograd_bridge.h"

#include <limits>
#include <unordered_set>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

namespace abele::capture {
namespace {

/// Does backward run torch.utils.checkpoint's reentrant form? It calls backward() inside backward, which leaves its
/// gradients in .grad and is invisible to autograd::grad.
bool isReentrant(const at::Tensor& loss) {
  std::vector<torch::autograd::Node*> pending{loss.grad_fn().get()};
  std::unordered_set<torch::autograd::Node*> seen(pending.begin(), pending.end());
  while (!pending.empty()) {
    torch::autograd::Node* node = pending.back();
    pending.pop_back();
    if (node == nullptr) continue;
    if (node->name().find("CheckpointFunction") != std::string::npos) return true;
    for (const torch::autograd::Edge& edge : node->next_edges())
      if (seen.insert(edge.function.get()).second) pending.push_back(edge.function.get());
  }
  return false;
}

/// The gradients that backward() leaves in .grad; what was there before is put back, also when it throws.
std::vector<at::Tensor> accumulated(const at::Tensor& loss, const at::Tensor& loss_gradient,
                                    const std::vector<at::Tensor>& parameters) {
  struct SavedGrads {
    explicit SavedGrads(const std::vector<at::Tensor>& p) : parameters(p) {
      for (const at::Tensor& parameter : parameters) {
        grads.push_back(parameter.grad());
        parameter.mutable_grad() = at::Tensor();
      }
    }
    ~SavedGrads() {
      for (size_t i = 0; i < grads.size(); ++i) parameters[i].mutable_grad() = grads[i];
    }
    const std::vector<at::Tensor>& parameters;
    std::vector<at::Tensor> grads;
  } saved(parameters);
  torch::autograd::backward({loss}, {loss_gradient}, /*retain_graph=*/false, /*create_graph=*/false);
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
  return gradients;
}

}  // namespace

std::vector<at::Tensor> gradients(const at::Tensor& loss, const at::Tensor& loss_gradient,
                                  const std::vector<at::Tensor>& parameters) {
  if (isReentrant(loss)) return accumulated(loss, loss_gradient, parameters);
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

// Small LibTorch networks with blocks for 1..5 stages, and the eager loop that a Session must equal.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "abele/annotate.h"
#include "abele/optim.h"
#include "session/session.h"

namespace abele::test {

using Tensors = std::vector<at::Tensor>;

/// A network of kLayers layers; layer i is in stage i * stages / kLayers, each on its own device.
class Network : public torch::nn::Module {
 public:
  static constexpr int kLayers = 5;
  explicit Network(int stages) : stages_(stages) {}
  /// Takes one micro-batch (input, target), and returns {loss, prediction}.
  virtual Tensors run(const Tensors& inputs) = 0;
  /// `rows` samples of (input, target).
  virtual Tensors sample(int64_t rows) = 0;

 protected:
  void enter(int layer) {
    const int stage = layer * stages_ / kLayers;
    if (layer == 0 || stage != (layer - 1) * stages_ / kLayers) beginBlock("stage" + std::to_string(stage), {stage});
  }
  int stages_;
};

/// "mlp", "conv", "lstm", "tied", "skip", "dropout". The same weights at each call.
std::shared_ptr<Network> makeNetwork(const std::string& name, int stages);

/// The session's view of a network; `tensors` must outlive the session.
struct ModelView {
  explicit ModelView(Network& network);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  session::Session::Program program;
};

struct Recipe {
  int64_t device_iterations = 1;
  int64_t accumulation = 1;
  bool mean = true;
  optim::Optimizer optimizer = optim::SGD{.lr = 0.1};
};

/// The spec of one group with all trainable parameters.
compile::OptimizerSpec specFor(Network& network, const optim::Optimizer& optimizer);

/// Eager PyTorch: `(loss / A).backward()` for A micro-batches, then torch.optim's arithmetic, D times a step.
class EagerTrainer {
 public:
  EagerTrainer(std::shared_ptr<Network> network, Recipe recipe);
  /// Results of each micro-batch.
  std::vector<Tensors> step(const Tensors& inputs);

 private:
  void update();
  std::shared_ptr<Network> network_;
  Recipe recipe_;
  std::vector<Tensors> state_;  // by parameter
  int64_t updates_ = 0;
};

/// Rows of micro-batch k of `parts`.
Tensors microBatch(const Tensors& inputs, int64_t k, int64_t parts);
/// Returns "" if all parameters and buffers are equal bit for bit, otherwise the first one that differs.
std::string firstDifference(Network& a, Network& b);

}  // namespace abele::test

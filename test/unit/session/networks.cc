#include "networks.h"

#include <cmath>

#include "modules/module.h"
#include "optimizer/optimizer.h"

namespace abele::test {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

at::Tensor noise(at::IntArrayRef sizes) { return torch::randn(sizes); }

class Mlp : public Network {
 public:
  explicit Mlp(int stages) : Network(stages) {
    for (int i = 0; i < kLayers; ++i)
      layers_.push_back(
          register_module("layer" + std::to_string(i), nn::Linear(i == 0 ? 6 : 8, i + 1 == kLayers ? 3 : 8)));
  }
  Tensors run(const Tensors& inputs) override {
    at::Tensor h = inputs[0];
    for (int i = 0; i < kLayers; ++i) {
      enter(i);
      h = layers_[i]->forward(h);
      if (i + 1 < kLayers) h = torch::relu(h);
    }
    return {torch::mse_loss(h, inputs[1]), h};
  }
  Tensors sample(int64_t rows) override { return {noise({rows, 6}), noise({rows, 3})}; }

 private:
  std::vector<nn::Linear> layers_;
};

class Conv : public Network {
 public:
  explicit Conv(int stages) : Network(stages) {
    conv0_ = register_module("conv0", nn::Conv2d(nn::Conv2dOptions(2, 4, 3).padding(1)));
    norm0_ = register_module("norm0", nn::BatchNorm2d(4));
    conv1_ = register_module("conv1", nn::Conv2d(nn::Conv2dOptions(4, 6, 3).padding(1).bias(false)));
    norm1_ = register_module("norm1", nn::BatchNorm2d(6));
    head_ = register_module("head", nn::Linear(6 * 4 * 4, 5));
  }
  Tensors run(const Tensors& inputs) override {
    enter(0);
    at::Tensor h = torch::relu(norm0_->forward(conv0_->forward(inputs[0])));
    enter(1);
    h = conv1_->forward(h);
    enter(2);
    h = torch::relu(norm1_->forward(h));
    enter(3);
    h = torch::max_pool2d(h, 2).flatten(1);
    enter(4);
    h = head_->forward(h);
    return {identityLoss(F::cross_entropy(h, inputs[1]), Reduction::kMean), h};
  }
  Tensors sample(int64_t rows) override { return {noise({rows, 2, 8, 8}), torch::randint(5, {rows}, at::kLong)}; }

 private:
  nn::Conv2d conv0_{nullptr}, conv1_{nullptr};
  nn::BatchNorm2d norm0_{nullptr}, norm1_{nullptr};
  nn::Linear head_{nullptr};
};

class Lstm : public Network {
 public:
  explicit Lstm(int stages) : Network(stages) {
    inner_ = register_module("inner", nn::Linear(3, 4));
    lstm_ = register_module("lstm", nn::LSTM(nn::LSTMOptions(4, 5).batch_first(true)));
    outer_ = register_module("outer", nn::Linear(5, 2));
  }
  Tensors run(const Tensors& inputs) override {
    enter(0);
    at::Tensor h = torch::tanh(inner_->forward(inputs[0]));
    enter(1);
    enter(2);
    h = std::get<0>(lstm_->forward(h));
    enter(3);
    h = h.select(1, -1);
    enter(4);
    h = outer_->forward(h);
    return {torch::mse_loss(h, inputs[1]), h};
  }
  Tensors sample(int64_t rows) override { return {noise({rows, 7, 3}), noise({rows, 2})}; }

 private:
  nn::Linear inner_{nullptr}, outer_{nullptr};
  nn::LSTM lstm_{nullptr};
};

// One weight read by the first and the last layer.
class Tied : public Network {
 public:
  explicit Tied(int stages) : Network(stages) {
    weight_ = register_parameter("weight", noise({8, 6}) * 0.3);
    middle_ = register_module("middle", nn::Linear(8, 8));
  }
  Tensors run(const Tensors& inputs) override {
    enter(0);
    at::Tensor h = torch::relu(torch::linear(inputs[0], weight_));
    enter(1);
    h = torch::relu(middle_->forward(h));
    enter(2);
    h = torch::sigmoid(h);
    enter(3);
    h = h * 2;
    enter(4);
    h = torch::linear(h, weight_.t());
    return {torch::mse_loss(h, inputs[1]), h};
  }
  Tensors sample(int64_t rows) override { return {noise({rows, 6}), noise({rows, 6})}; }

 private:
  at::Tensor weight_;
  nn::Linear middle_{nullptr};
};

// The second layer and the last layer read the first layer's result.
class Skip : public Network {
 public:
  explicit Skip(int stages) : Network(stages) {
    for (int i = 0; i < kLayers; ++i) layers_.push_back(register_module("layer" + std::to_string(i), nn::Linear(6, 6)));
  }
  Tensors run(const Tensors& inputs) override {
    enter(0);
    const at::Tensor first = layers_[0]->forward(inputs[0]);
    at::Tensor h = first;
    for (int i = 1; i < kLayers; ++i) {
      enter(i);
      if (i == 3) h = h + first;
      if (i == 4) h = torch::cat({h, first, inputs[0]}, 1).narrow(1, 3, 6);
      h = layers_[i]->forward(torch::gelu(h));
    }
    return {torch::mse_loss(h, inputs[1]), h};
  }
  Tensors sample(int64_t rows) override { return {noise({rows, 6}), noise({rows, 6})}; }

 private:
  std::vector<nn::Linear> layers_;
};

class Dropout : public Network {
 public:
  explicit Dropout(int stages) : Network(stages) {
    inner_ = register_module("inner", nn::Linear(6, 16));
    outer_ = register_module("outer", nn::Linear(16, 3));
  }
  Tensors run(const Tensors& inputs) override {
    enter(0);
    at::Tensor h = torch::dropout(inner_->forward(inputs[0]), 0.5, /*train=*/true);
    for (int i = 1; i < kLayers - 1; ++i) enter(i);
    h = torch::dropout(torch::relu(h), 0.2, /*train=*/true);
    enter(4);
    h = outer_->forward(h);
    return {torch::mse_loss(h, inputs[1]), h};
  }
  Tensors sample(int64_t rows) override { return {noise({rows, 6}), noise({rows, 3})}; }

 private:
  nn::Linear inner_{nullptr}, outer_{nullptr};
};

at::Tensor sgdGradient(const optim::SGD& o, const at::Tensor& p, at::Tensor grad, Tensors& state) {
  if (o.maximize) grad = -grad;
  if (o.weight_decay != 0) grad = grad.add(p, o.weight_decay);
  if (o.momentum == 0) return grad;
  if (state.empty())
    state = {grad.clone()};
  else
    state[0].mul_(o.momentum).add_(grad, 1 - o.dampening);
  return o.nesterov ? grad.add(state[0], o.momentum) : state[0];
}

template <class AdamLike>
void adamUpdate(const AdamLike& o, bool decoupled, at::Tensor p, at::Tensor grad, Tensors& state, int64_t step) {
  if (o.maximize) grad = -grad;
  if (o.weight_decay != 0) {
    if (decoupled)
      p.mul_(1 - o.lr * o.weight_decay);
    else
      grad = grad.add(p, o.weight_decay);
  }
  if (state.empty()) state = {torch::zeros_like(p), torch::zeros_like(p)};
  state[0].lerp_(grad, 1 - o.beta1);
  state[1].mul_(o.beta2).addcmul_(grad, grad, 1 - o.beta2);
  const double step_size = o.lr / (1 - std::pow(o.beta1, step));
  const double root = std::sqrt(1 - std::pow(o.beta2, step));
  p.addcdiv_(state[0], (state[1].sqrt() / root).add_(o.eps), -step_size);
}

}  // namespace

std::shared_ptr<Network> makeNetwork(const std::string& name, int stages) {
  torch::manual_seed(7);
  if (name == "mlp") return std::make_shared<Mlp>(stages);
  if (name == "conv") return std::make_shared<Conv>(stages);
  if (name == "lstm") return std::make_shared<Lstm>(stages);
  if (name == "tied") return std::make_shared<Tied>(stages);
  if (name == "skip") return std::make_shared<Skip>(stages);
  TORCH_CHECK(name == "dropout", "no network ", name);
  return std::make_shared<Dropout>(stages);
}

ModelView::ModelView(Network& network) {
  for (const auto& p : network.named_parameters()) tensors.emplace_back(p.key(), p.value());
  const size_t num_parameters = tensors.size();
  for (const auto& b : network.named_buffers()) tensors.emplace_back(b.key(), b.value());
  for (size_t i = 0; i < tensors.size(); ++i)
    program.model.push_back({tensors[i].first, &tensors[i].second, i < num_parameters});
  program.forward = [&network](Tensors inputs) { return network.run(inputs); };
}

compile::OptimizerSpec specFor(Network& network, const optim::Optimizer& optimizer) {
  return optimizer::optimizerSpec(optimizer, modules::tensorsOf(network));
}

EagerTrainer::EagerTrainer(std::shared_ptr<Network> network, Recipe recipe)
    : network_(std::move(network)), recipe_(std::move(recipe)), state_(network_->parameters().size()) {}

std::vector<Tensors> EagerTrainer::step(const Tensors& inputs) {
  const int64_t parts = recipe_.device_iterations * recipe_.accumulation;
  std::vector<Tensors> results;
  for (int64_t k = 0; k < parts; ++k) {
    if (k % recipe_.accumulation == 0) network_->zero_grad();
    Tensors out = network_->run(microBatch(inputs, k, parts));
    (recipe_.mean ? out[0] / recipe_.accumulation : out[0]).backward();
    for (at::Tensor& t : out) t = t.detach();
    results.push_back(std::move(out));
    if ((k + 1) % recipe_.accumulation == 0) update();
  }
  return results;
}

void EagerTrainer::update() {
  torch::NoGradGuard no_grad;
  ++updates_;
  const std::vector<at::Tensor> parameters = network_->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor p = parameters[i];
    if (!p.grad().defined()) continue;
    if (auto* sgd = std::get_if<std::vector<optim::SGD>>(&recipe_.optimizer.groups))
      p.add_(sgdGradient(sgd->at(0), p, p.grad(), state_[i]), -sgd->at(0).lr);
    else if (auto* adam = std::get_if<std::vector<optim::Adam>>(&recipe_.optimizer.groups))
      adamUpdate(adam->at(0), /*decoupled=*/false, p, p.grad(), state_[i], updates_);
    else
      adamUpdate(std::get<std::vector<optim::AdamW>>(recipe_.optimizer.groups).at(0), /*decoupled=*/true, p, p.grad(),
                 state_[i], updates_);
  }
}

Tensors microBatch(const Tensors& inputs, int64_t k, int64_t parts) {
  Tensors rows;
  for (const at::Tensor& t : inputs) rows.push_back(t.narrow(0, k * (t.size(0) / parts), t.size(0) / parts));
  return rows;
}

std::string firstDifference(Network& a, Network& b) {
  const ModelView left(a), right(b);
  for (size_t i = 0; i < left.tensors.size(); ++i)
    if (!torch::equal(left.tensors[i].second, right.tensors[i].second)) {
      const at::Tensor gap = (left.tensors[i].second - right.tensors[i].second).abs().max();
      return left.tensors[i].first + " differs by " + std::to_string(gap.item<double>());
    }
  return "";
}

}  // namespace abele::test

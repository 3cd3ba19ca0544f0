// Real networks: forward and every gradient of a replay on new inputs equal eager bit for bit.
#include "fixture.h"

namespace abele::capture {
namespace {

namespace nn = torch::nn;

Tensors random(std::vector<std::vector<int64_t>> shapes, uint64_t seed) {
  torch::manual_seed(seed);
  Tensors all;
  for (auto& shape : shapes) all.push_back(torch::randn(shape));
  return all;
}

TEST(Replay, MlpWithDropout) {
  nn::Sequential model(nn::Linear(8, 32), nn::ReLU(), nn::Dropout(0.3), nn::Linear(32, 32), nn::GELU(),
                       nn::Dropout(0.5), nn::Linear(32, 4));
  auto forward = [&](Tensors x) { return Tensors{torch::mse_loss(model->forward(x[0]), x[1])}; };
  const Recording recording =
      expectCaptured(model.ptr(), forward, random({{16, 8}, {16, 4}}, 1), random({{16, 8}, {16, 4}}, 2));
  EXPECT_GT(recording.graph.random_draws, 0);
  EXPECT_EQ(recording.graph.externals.size(), 6u + 1u);  // weights, biases, loss_gradient
}

TEST(Replay, TransformerEncoderLayer) {
  nn::TransformerEncoderLayer layer(nn::TransformerEncoderLayerOptions(16, 4).dim_feedforward(32).dropout(0.1));
  auto forward = [&](Tensors x) { return Tensors{layer->forward(x[0]).square().mean()}; };
  expectCaptured(layer.ptr(), forward, random({{5, 2, 16}}, 1), random({{5, 2, 16}}, 2));
}

TEST(Replay, ScaledDotProductAttention) {
  nn::Linear qkv(16, 48);
  auto forward = [&](Tensors x) {
    auto parts = qkv->forward(x[0]).view({2, 7, 3, 4, 4}).permute({2, 0, 3, 1, 4}).unbind(0);
    auto y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    return Tensors{y.transpose(1, 2).reshape({2, 7, 16}).pow(2).sum()};
  };
  expectCaptured(qkv.ptr(), forward, random({{2, 7, 16}}, 1), random({{2, 7, 16}}, 2));
}

TEST(Replay, ConvolutionWithBatchNorm) {
  nn::Sequential model(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), nn::BatchNorm2d(8),
                       nn::ReLU(nn::ReLUOptions(true)), nn::MaxPool2d(2),
                       nn::Conv2d(nn::Conv2dOptions(8, 8, 3).stride(2)), nn::BatchNorm2d(8), nn::Flatten(),
                       nn::Linear(8 * 3 * 3, 10));
  auto forward = [&](Tensors x) {
    auto y = model->forward(x[0]);
    return Tensors{torch::cross_entropy_loss(y, torch::tensor({1, 2, 3, 4})), y};
  };
  const Recording recording =
      expectCaptured(model.ptr(), forward, random({{4, 3, 16, 16}}, 1), random({{4, 3, 16, 16}}, 2));
  size_t updates = 0;
  for (const ir::Output& output : recording.graph.outputs) updates += output.kind == ir::OutputKind::kUpdate;
  EXPECT_EQ(updates, 6u);  // mean, variance and count of two layers
}

TEST(Replay, BatchNormInEvaluationWritesNothing) {
  nn::Sequential model(nn::Conv2d(3, 4, 3), nn::BatchNorm2d(4));
  model->eval();
  auto forward = [&](Tensors x) { return Tensors{model->forward(x[0])}; };
  const Recording recording =
      expectCaptured(model.ptr(), forward, random({{2, 3, 6, 6}}, 1), random({{2, 3, 6, 6}}, 2), /*training=*/false);
  for (const ir::Output& output : recording.graph.outputs) EXPECT_EQ(output.kind, ir::OutputKind::kResult);
}

TEST(Replay, Lstm) {
  nn::LSTM lstm(nn::LSTMOptions(6, 10).num_layers(2).dropout(0.2).bidirectional(true));
  auto forward = [&](Tensors x) {
    auto [y, state] = lstm->forward(x[0]);
    return Tensors{y.square().sum() + std::get<1>(state).sum()};
  };
  expectCaptured(lstm.ptr(), forward, random({{7, 3, 6}}, 1), random({{7, 3, 6}}, 2));
}

TEST(Replay, LstmInference) {
  nn::LSTM lstm(nn::LSTMOptions(6, 10));
  auto forward = [&](Tensors x) { return Tensors{std::get<0>(lstm->forward(x[0]))}; };
  expectCaptured(lstm.ptr(), forward, random({{7, 3, 6}}, 1), random({{7, 3, 6}}, 2), /*training=*/false);
}

TEST(Replay, Gru) {
  nn::GRU gru(nn::GRUOptions(6, 10).batch_first(true));
  auto forward = [&](Tensors x) { return Tensors{std::get<0>(gru->forward(x[0])).square().mean()}; };
  expectCaptured(gru.ptr(), forward, random({{3, 7, 6}}, 1), random({{3, 7, 6}}, 2));
}

struct TiedImpl : nn::Module {
  TiedImpl() {
    embedding = register_module("embedding", nn::Embedding(20, 8));
    hidden = register_module("hidden", nn::Linear(8, 8));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({8})));
  }
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& labels) {
    auto h = norm->forward(torch::tanh(hidden->forward(embedding->forward(ids))));
    auto logits = torch::linear(h, embedding->weight);
    return torch::cross_entropy_loss(logits.view({-1, 20}), labels.view({-1}));
  }
  nn::Embedding embedding{nullptr};
  nn::Linear hidden{nullptr};
  nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(Tied);

TEST(Replay, EmbeddingWithTiedHead) {
  Tied model;
  auto forward = [&](Tensors x) { return Tensors{model->forward(x[0], x[1])}; };
  torch::manual_seed(3);
  auto ids = [] { return torch::randint(0, 20, {3, 5}); };
  const Tensors first{ids(), ids()}, second{ids(), ids()};
  const Recording recording = expectCaptured(model.ptr(), forward, first, second);
  size_t gradients = 0;
  for (const ir::Output& output : recording.graph.outputs) gradients += output.kind == ir::OutputKind::kGradient;
  EXPECT_EQ(gradients, 5u);
}

TEST(Replay, FrozenParametersAndNoGrad) {
  nn::Sequential model(nn::Linear(4, 4), nn::Linear(4, 4), nn::Linear(4, 4));
  model[1]->as<nn::Linear>()->weight.set_requires_grad(false);
  auto forward = [&](Tensors x) {
    at::Tensor h = model[0]->as<nn::Linear>()->forward(x[0]);
    at::Tensor gate;
    {
      torch::NoGradGuard no_grad;
      gate = h.sigmoid();
    }
    h = model[1]->as<nn::Linear>()->forward(h * gate + h.detach());
    return Tensors{model[2]->as<nn::Linear>()->forward(h).detach().mean() + h.square().mean(), h};
  };
  const Recording recording = expectCaptured(model.ptr(), forward, random({{6, 4}}, 1), random({{6, 4}}, 2));
  size_t gradients = 0;
  for (const ir::Output& output : recording.graph.outputs) gradients += output.kind == ir::OutputKind::kGradient;
  EXPECT_EQ(gradients, 3u);  // weight and bias of the first, bias of the second
}

}  // namespace
}  // namespace abele::capture

// Two small networks for 8 x 8 digits, cut into four pipeline stages: the C++ twin of digits_models.py.
// Members are registered in the same order as there, so that a seed gives the same weights.
#pragma once

#include <abele/abele.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace digits {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

struct EncoderLayerImpl : nn::Module {
  EncoderLayerImpl(int64_t dim, int64_t heads) : heads(heads) {
    norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({dim})));
    qkv = register_module("qkv", nn::Linear(dim, 3 * dim));
    proj = register_module("proj", nn::Linear(dim, dim));
    norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({dim})));
    up = register_module("up", nn::Linear(dim, 4 * dim));
    down = register_module("down", nn::Linear(4 * dim, dim));
  }

  torch::Tensor forward(torch::Tensor x) {
    const int64_t batch = x.size(0), tokens = x.size(1), dim = x.size(2);
    const auto parts = qkv(norm1(x)).view({batch, tokens, 3, heads, dim / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const auto mixed = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
    x = x + proj(mixed.transpose(1, 2).reshape({batch, tokens, dim}));
    return x + down(F::gelu(up(norm2(x))));
  }

  int64_t heads;
  nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  nn::Linear qkv{nullptr}, proj{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(EncoderLayer);

/// What both networks offer: images and labels in, logits and loss out.
struct Network : nn::Module {
  virtual torch::Tensor logits(torch::Tensor images) = 0;

  std::vector<torch::Tensor> losses(const torch::Tensor& images, const torch::Tensor& labels) {
    const auto scores = logits(images);
    return {scores, abele::identityLoss(F::cross_entropy(scores, labels))};
  }
};

/// 16 overlapping patches of 4 x 4 pixels, 4 layers, mean over patches.
struct VisionTransformer : Network {
  explicit VisionTransformer(int64_t dim = 32, int64_t num_heads = 4) {
    embed = register_module("embed", nn::Conv2d(nn::Conv2dOptions(1, dim, 4).stride(2).padding(1)));
    position = register_parameter("position", torch::randn({16, dim}) * 0.02);
    layers = register_module("layers", nn::ModuleList());
    for (int i = 0; i < 4; ++i) layers->push_back(EncoderLayer(dim, num_heads));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({dim})));
    head = register_module("head", nn::Linear(dim, 10));
  }

  torch::Tensor logits(torch::Tensor images) override {
    abele::beginBlock("embed", 0);
    auto x = embed(images).flatten(2).transpose(1, 2) + position;
    for (int stage = 0; stage < 4; ++stage) {
      abele::beginBlock("layer" + std::to_string(stage), stage);
      x = layers[stage]->as<EncoderLayer>()->forward(x);
    }
    return head(norm(x).mean(1));
  }

  nn::Conv2d embed{nullptr};
  torch::Tensor position;
  nn::ModuleList layers{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::Linear head{nullptr};
};

inline nn::Conv2d convolution(int64_t channels_in, int64_t channels, int64_t size, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(channels_in, channels, size).stride(stride).padding(size / 2).bias(false));
}

struct ResidualBlockImpl : nn::Module {
  ResidualBlockImpl(int64_t channels_in, int64_t channels, int64_t stride) {
    conv1 = register_module("conv1", convolution(channels_in, channels, 3, stride));
    norm1 = register_module("norm1", nn::BatchNorm2d(channels));
    conv2 = register_module("conv2", convolution(channels, channels, 3, 1));
    norm2 = register_module("norm2", nn::BatchNorm2d(channels));
    if (stride != 1 || channels_in != channels) {
      skip = register_module("skip", convolution(channels_in, channels, 1, stride));
    }
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = F::relu(norm1(conv1(x)));
    return F::relu(norm2(conv2(y)) + (skip ? skip(x) : x));
  }

  nn::Conv2d conv1{nullptr}, conv2{nullptr}, skip{nullptr};
  nn::BatchNorm2d norm1{nullptr}, norm2{nullptr};
};
TORCH_MODULE(ResidualBlock);

/// Four residual blocks with batch normalisation.
struct ResNet : Network {
  explicit ResNet(int64_t width = 16) {
    stem = register_module("stem", convolution(1, width, 3, 1));
    norm = register_module("norm", nn::BatchNorm2d(width));
    block1 = register_module("block1", ResidualBlock(width, width, 1));
    block2 = register_module("block2", ResidualBlock(width, 2 * width, 2));
    block3 = register_module("block3", ResidualBlock(2 * width, 2 * width, 1));
    block4 = register_module("block4", ResidualBlock(2 * width, 4 * width, 2));
    head = register_module("head", nn::Linear(4 * width, 10));
  }

  torch::Tensor logits(torch::Tensor images) override {
    abele::beginBlock("block1", 0);
    auto x = block1(F::relu(norm(stem(images))));
    abele::beginBlock("block2", 1);
    x = block2(x);
    abele::beginBlock("block3", 2);
    x = block3(x);
    abele::beginBlock("block4", 3);
    return head(block4(x).mean({2, 3}));
  }

  nn::Conv2d stem{nullptr};
  nn::BatchNorm2d norm{nullptr};
  ResidualBlock block1{nullptr}, block2{nullptr}, block3{nullptr}, block4{nullptr};
  nn::Linear head{nullptr};
};

}  // namespace digits

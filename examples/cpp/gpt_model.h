// A small GPT on characters, cut into pipeline stages, and its form that writes text with a cache of keys and values:
// the C++ twin of gpt_model.py. Members are registered in the same order as there, so that a seed gives the same
// weights.
#pragma once

#include <abele/abele.h>
#include <torch/torch.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

/// A text as numbers: each byte that occurs has one, in the order of the alphabet.
class Text {
 public:
  explicit Text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    for (const char each : text) number_[each] = 0;
    for (auto& [character, number] : number_) {
      number = static_cast<int64_t>(characters_.size());
      characters_ += character;
    }
    tokens_ = encode(text);
  }

  int64_t size() const { return static_cast<int64_t>(characters_.size()); }

  torch::Tensor encode(const std::string& text) const {
    std::vector<int64_t> tokens;
    for (const char each : text) {
      if (!number_.count(each)) throw std::runtime_error(std::string("the text has no '") + each + "'");
      tokens.push_back(number_.at(each));
    }
    return torch::tensor(tokens);
  }

  std::string decode(const std::vector<int64_t>& tokens) const {
    std::string text;
    for (const int64_t token : tokens) text += characters_[token];
    return text;
  }

  /// Pieces of the text that begin anywhere, and the character after each of theirs. Shapes: two of [count, length].
  std::pair<torch::Tensor, torch::Tensor> pieces(int64_t count, int64_t length, const at::Generator& random) const {
    const auto begins = torch::randint(tokens_.size(0) - length, {count}, random);
    const auto rows = begins.unsqueeze(1) + torch::arange(length);
    return {tokens_.index({rows}), tokens_.index({rows + 1})};
  }

 private:
  std::map<char, int64_t> number_;
  std::string characters_;
  torch::Tensor tokens_;
};

/// As Python's Linear: nn::Linear's own forward adds the bias to a product of three dimensions in a step of its own,
/// which rounds otherwise.
inline torch::Tensor linear(const nn::Linear& layer, const torch::Tensor& x) {
  return torch::linear(x, layer->weight, layer->bias);
}

/// Pre-norm transformer layer.
struct LayerImpl : nn::Module {
  LayerImpl(int64_t dim, int64_t heads) : heads(heads) {
    norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({dim})));
    qkv = register_module("qkv", nn::Linear(dim, 3 * dim));
    proj = register_module("proj", nn::Linear(dim, dim));
    norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({dim})));
    up = register_module("up", nn::Linear(dim, 4 * dim));
    down = register_module("down", nn::Linear(4 * dim, dim));
  }

  /// Every token sees itself and those before it. Shapes: [rows, tokens, dim].
  torch::Tensor forward(const torch::Tensor& x) {
    const auto parts = headsOf(x);
    return out(x, torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true));
  }

  /// The token at `position` alone, which adds its key and value to those before it.
  /// Shapes: x [rows, 1, dim]; keys and values [rows, heads, context, dim / heads], written in place; position [1];
  ///     seen [1, context], false where there is no token yet.
  torch::Tensor next(const torch::Tensor& x, torch::Tensor keys, torch::Tensor values, const torch::Tensor& position,
                     const torch::Tensor& seen) {
    const auto parts = headsOf(x);
    keys.index_copy_(2, position, parts[1]);
    values.index_copy_(2, position, parts[2]);
    return out(x, torch::scaled_dot_product_attention(parts[0], keys, values, seen));
  }

  int64_t heads;
  nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  nn::Linear qkv{nullptr}, proj{nullptr}, up{nullptr}, down{nullptr};

 private:
  std::vector<torch::Tensor> headsOf(const torch::Tensor& x) {
    const int64_t rows = x.size(0), tokens = x.size(1), dim = x.size(2);
    return linear(qkv, norm1(x)).view({rows, tokens, 3, heads, dim / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
  }

  torch::Tensor out(const torch::Tensor& x, const torch::Tensor& mixed) {
    const auto y = x + linear(proj, mixed.transpose(1, 2).reshape(x.sizes()));
    return y + linear(down, F::gelu(linear(up, norm2(y))));
  }
};
TORCH_MODULE(Layer);

struct Sizes {
  int64_t context = 64, dim = 64, heads = 4, layers = 4;
};

/// Shapes: tokens and targets [rows, tokens]; logits [rows, tokens, characters].
struct Model : nn::Module {
  Model(int64_t characters, int64_t devices, const Sizes& sizes) : devices(devices), sizes(sizes) {
    embed = register_module("embed", nn::Embedding(characters, sizes.dim));
    place = register_module("place", nn::Embedding(sizes.context, sizes.dim));
    layers = register_module("layers", nn::ModuleList());
    for (int64_t i = 0; i < sizes.layers; ++i) layers->push_back(Layer(sizes.dim, sizes.heads));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({sizes.dim})));
    head = register_module("head", nn::Linear(sizes.dim, characters));
  }

  Layer layer(int64_t i) { return Layer(std::dynamic_pointer_cast<LayerImpl>(layers[i])); }

  /// Assigns the following operators to the device of this layer. Outside of Abele it does nothing.
  void begin(int64_t i) {
    abele::beginBlock("layer" + std::to_string(i), static_cast<int>(i * devices / sizes.layers));
  }

  torch::Tensor logits(const torch::Tensor& tokens) {
    begin(0);
    auto x = embed(tokens) + place->weight.narrow(0, 0, tokens.size(1));
    for (int64_t i = 0; i < sizes.layers; ++i) {
      begin(i);
      x = layer(i)(x);
    }
    return linear(head, norm(x));
  }

  torch::Tensor loss(const torch::Tensor& tokens, const torch::Tensor& targets) {
    return F::cross_entropy(logits(tokens).flatten(0, 1), targets.flatten());
  }

  int64_t devices;
  Sizes sizes;
  nn::Embedding embed{nullptr}, place{nullptr};
  nn::ModuleList layers{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::Linear head{nullptr};
};

/// A model that reads one token a call. All shapes are fixed: the keys and values of a whole context are buffers, of
/// which a mask hides the part that is not written yet. Position 0 begins a new text.
/// Shapes: tokens [1]; position [1]; logits of the next token [1, characters].
struct Writer : nn::Module {
  explicit Writer(std::shared_ptr<Model> model) : model(register_module("gpt", std::move(model))) {
    const Sizes& sizes = this->model->sizes;
    for (int64_t i = 0; i < sizes.layers; ++i) {
      for (const std::string what : {"keys", "values"}) {
        register_buffer(what + std::to_string(i),
                        torch::zeros({1, sizes.heads, sizes.context, sizes.dim / sizes.heads}));
      }
    }
  }

  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& position) {
    model->begin(0);
    const auto seen = torch::arange(model->sizes.context).unsqueeze(0) <= position;
    auto x = (model->embed(tokens) + model->place(position)).unsqueeze(1);
    auto cache = named_buffers(/*recurse=*/false);
    for (int64_t i = 0; i < model->sizes.layers; ++i) {
      model->begin(i);
      const std::string number = std::to_string(i);
      x = model->layer(i)->next(x, cache["keys" + number], cache["values" + number], position, seen);
    }
    return linear(model->head, model->norm(x)).squeeze(1);
  }

  std::shared_ptr<Model> model;
};

/// Tokens of a text that begins with a prompt: always the likeliest character.
/// step: a Writer, eager or compiled. length: tokens altogether, at most the context.
inline std::vector<int64_t> write(const std::function<torch::Tensor(const torch::Tensor&, const torch::Tensor&)>& step,
                                  const torch::Tensor& prompt, int64_t length) {
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> tokens(prompt.data_ptr<int64_t>(), prompt.data_ptr<int64_t>() + prompt.size(0));
  for (int64_t position = 0; position + 1 < length; ++position) {
    const auto logits = step(torch::tensor({tokens[position]}), torch::tensor({position}));
    if (position + 1 < prompt.size(0)) continue;  // the prompt says what follows
    tokens.push_back(logits[0].argmax().item<int64_t>());
  }
  return tokens;
}

}  // namespace gpt

// A network of two stages with the same weights in every object.
#pragma once

#include <torch/torch.h>

#include "abele/abele.h"

namespace abele::test {

struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl() {
    torch::manual_seed(1);
    first = register_module("first", torch::nn::Linear(4, 8));
    second = register_module("second", torch::nn::Linear(8, 2));
  }
  at::Tensor forward(const at::Tensor& x) {
    Block::start("first", 0);
    const at::Tensor h = torch::relu(first(x));
    Block::start("second", 1);
    return second(h);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(TwoLayers);

}  // namespace abele::test

// For users of the library: TorchScript modules, which torch::jit::load returns. They stand where a torch::nn::Module
// does: in trainingModel, inferenceModel and placeModules. Read model.h first.
//
//   torch::jit::Module net = torch::jit::load("net.pt");
//   auto predict = abele::inferenceModel(net);                        // its own forward
//   auto train = abele::trainingModel(net, [net](at::Tensor x, at::Tensor y) mutable {
//     return torch::mse_loss(net.forward({x}).toTensor(), y);
//   }, options, abele::optim::SGD{.lr = 0.1});
//
// The model's weights are the script's parameters and buffers. Arguments are converted to the types that its forward
// declares: structures to tuples, lists and dictionaries, numbers and texts to int, float, bool and str. Results come
// back as structures, without the names of named tuples. The program is what TorchScript's interpreter runs in the
// first call; its own optimizer may round otherwise from the second one on. E0108 for a forward that assigns to a
// parameter or buffer instead of writing into it.
#pragma once

#include <memory>

#include "abele/export.h"

namespace torch::nn {
class Module;
}
namespace torch::jit {
struct Module;
}

namespace abele {

/// A module of torch::nn with the parameters, buffers and submodules of a TorchScript module: the same tensors, and no
/// forward. For functions that take a torch::nn::Module: loadTrainingModel, offload. While somebody holds it, calls for
/// the same script return the same one. Threads: safe.
ABELE_API std::shared_ptr<torch::nn::Module> moduleOf(const torch::jit::Module& script);

}  // namespace abele

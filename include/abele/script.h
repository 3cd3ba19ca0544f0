// For users of the library: TorchScript modules, which torch::jit::load returns. trainingModel, inferenceModel and
// placeModules take them in place of a torch::nn::Module. Read model.h first.
//
//   torch::jit::Module net = torch::jit::load("net.pt");
//   auto predict = abele::inferenceModel(net);                        // its own forward
//   auto train = abele::trainingModel(net, [net](at::Tensor x, at::Tensor y) mutable {
//     return torch::mse_loss(net.forward({x}).toTensor(), y);
//   }, options, abele::optim::SGD{.lr = 0.1});
//
// The model's weights are the script's parameters and buffers. Arguments are converted to the types that the script's
// forward declares: structures to tuples, lists and dictionaries; numbers and texts to int, float, bool and str.
// Results come back as structures; named tuples lose their names. The program has the operators that TorchScript's
// interpreter runs in a script's first call. In later calls TorchScript optimises the script, and may round
// differently. A forward that assigns to a parameter or buffer instead of writing into it raises E0108.
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

/// A torch::nn::Module with the parameters, buffers and submodules of a TorchScript module: the same tensors, without a
/// forward. It is for functions that take a torch::nn::Module: loadTrainingModel, offload. As long as the returned
/// pointer lives, calls for the same script return the same module. Threads: safe.
ABELE_API std::shared_ptr<torch::nn::Module> moduleOf(const torch::jit::Module& script);

}  // namespace abele

// The tensors and the modules of a torch::nn::Module.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace abele::modules {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  bool is_parameter = false;
  bool trains = false;  // an optimizer updates it
};

// module.cc
/// Parameters, then buffers, each once, under its first name.
std::vector<NamedTensor> tensorsOf(const torch::nn::Module& module);
/// Keeps the module alive if a std::shared_ptr owns it; otherwise null.
std::shared_ptr<const void> ownerOf(torch::nn::Module& module);

/// The path ("encoder.0") of every registered module, parents first.
std::vector<std::string> modulePaths(const torch::nn::Module& module);

/// A description of a module without its tensors.
struct ModuleKind {
  std::string path;  // "encoder.0"; "" for the outermost module
  std::string text;  // its type; for torch's modules with options: "torch::nn::Dropout(p=0.5, inplace=false)"
  bool operator==(const ModuleKind&) const = default;
};
/// The kinds of a module and of all modules registered in it, parents first.
std::vector<ModuleKind> moduleKinds(const torch::nn::Module& module);

}  // namespace abele::modules

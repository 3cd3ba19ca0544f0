// The tensors of a LibTorch module. A file of its own, because torch/nn/module.h compiles slowly.
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include <torch/nn/module.h>

#include "files/weight_files.h"
#include "modules/module.h"
#include "modules/weight_targets.h"

namespace abele::modules {

std::vector<NamedTensor> tensorsOf(const torch::nn::Module& module) {
  std::vector<NamedTensor> tensors;
  std::unordered_set<const void*> seen;
  const auto add = [&](const auto& list, bool is_parameter) {
    for (const auto& item : list)
      if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
        tensors.push_back({item.key(), item.value(), is_parameter, is_parameter && item.value().requires_grad()});
  };
  add(module.named_parameters(), true);
  add(module.named_buffers(), false);
  return tensors;
}

std::vector<files::WeightTarget> weightTargetsOf(const torch::nn::Module& module) {
  std::vector<files::WeightTarget> targets;
  std::unordered_map<const void*, size_t> index_of;
  const auto add = [&](const auto& list) {
    for (const auto& item : list) {
      if (!item.value().defined()) continue;
      const auto [place, is_new] = index_of.emplace(item.value().unsafeGetTensorImpl(), targets.size());
      if (is_new) targets.push_back({.names = {}, .tensor = item.value()});
      targets[place->second].names.push_back(item.key());
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return targets;
}

std::vector<std::string> modulePaths(const torch::nn::Module& module) {
  std::vector<std::string> paths;
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) paths.push_back(item.key());
  return paths;
}

namespace {

std::string kindOf(const torch::nn::Module& module) {
  // The text of torch's own modules does not change from step to step.
  if (!module.name().starts_with("torch::nn::")) return module.name();
  std::ostringstream text;
  module.pretty_print(text);
  return text.str();
}

}  // namespace

std::vector<ModuleKind> moduleKinds(const torch::nn::Module& module) {
  std::vector<ModuleKind> kinds{{"", kindOf(module)}};
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false))
    kinds.push_back({item.key(), kindOf(*item.value())});
  return kinds;
}

std::shared_ptr<const void> ownerOf(torch::nn::Module& module) { return module.weak_from_this().lock(); }

}  // namespace abele::modules

// Converts optimizers of LibTorch to device optimizers. A file of its own, because LibTorch's headers compile slowly.
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <set>

#include "abele/optim.h"
#include "base/error.h"
#include "base/log.h"
#include "modules/module.h"

namespace abele {
namespace {

void requireNoAmsgrad(bool amsgrad) {
  ABELE_REQUIRE(!amsgrad, E0706, {.what = "amsgrad is not available on the device", .remedy = "leave amsgrad out"});
}

optim::SGD groupOf(const torch::optim::SGDOptions& o) {
  return {.lr = o.lr(),
          .momentum = o.momentum(),
          .dampening = o.dampening(),
          .weight_decay = o.weight_decay(),
          .nesterov = o.nesterov()};
}
template <class Group, class AdamOptions>
Group adamOf(const AdamOptions& o) {
  requireNoAmsgrad(o.amsgrad());
  return {.lr = o.lr(),
          .beta1 = std::get<0>(o.betas()),
          .beta2 = std::get<1>(o.betas()),
          .eps = o.eps(),
          .weight_decay = o.weight_decay()};
}
optim::Adam groupOf(const torch::optim::AdamOptions& o) { return adamOf<optim::Adam>(o); }
optim::AdamW groupOf(const torch::optim::AdamWOptions& o) { return adamOf<optim::AdamW>(o); }
optim::RMSprop groupOf(const torch::optim::RMSpropOptions& o) {
  return {.lr = o.lr(),
          .alpha = o.alpha(),
          .eps = o.eps(),
          .weight_decay = o.weight_decay(),
          .momentum = o.momentum(),
          .centered = o.centered()};
}

/// The model's names of a group's tensors. taken: names in earlier groups.
std::vector<std::string> namesOf(const torch::optim::OptimizerParamGroup& group,
                                 const std::vector<modules::NamedTensor>& tensors, std::set<std::string>& taken) {
  std::vector<std::string> names;
  for (const at::Tensor& parameter : group.params()) {
    const auto own =
        std::ranges::find_if(tensors, [&](const modules::NamedTensor& t) { return t.tensor.is_same(parameter); });
    ABELE_REQUIRE(own != tensors.end() && own->is_parameter, E0706,
                  {.what = "the optimizer has a tensor that is not a parameter of the model",
                   .found = contiguousType(static_cast<DType>(parameter.scalar_type()), parameter.sizes().vec()).str(),
                   .remedy = "make the optimizer with the parameters() of the module that is wrapped"});
    ABELE_REQUIRE(
        taken.insert(own->name).second, E0706,
        {.what = cat("the optimizer has ", own->name, " several times, and LibTorch would update it as often"),
         .expected = "each parameter once",
         .remedy =
             "pass each parameter once: parameters() lists a submodule's once for each place where it is registered"});
    names.push_back(own->name);
  }
  return names;
}

template <class TorchOptions>
optim::Optimizer allGroups(const torch::optim::Optimizer& optimizer, const std::vector<modules::NamedTensor>& tensors) {
  std::vector<decltype(groupOf(std::declval<const TorchOptions&>()))> groups;
  std::set<std::string> taken;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    if (group.params().empty()) continue;
    groups.push_back(groupOf(static_cast<const TorchOptions&>(group.options())));
    groups.back().libtorch = true;
    groups.back().parameters = namesOf(group, tensors, taken);
  }
  return groups;
}

}  // namespace

optim::Optimizer optim::fromTorch(const torch::optim::Optimizer& optimizer, const torch::nn::Module& module) {
  const std::vector<modules::NamedTensor> tensors = modules::tensorsOf(module);
  if (!optimizer.state().empty())
    log::warn("the optimizer of LibTorch has made steps: its moments stay behind, and those of the device begin at 0");
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer))
    return allGroups<torch::optim::SGDOptions>(optimizer, tensors);
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer))
    return allGroups<torch::optim::AdamOptions>(optimizer, tensors);
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer))
    return allGroups<torch::optim::AdamWOptions>(optimizer, tensors);
  if (dynamic_cast<const torch::optim::RMSprop*>(&optimizer))
    return allGroups<torch::optim::RMSpropOptions>(optimizer, tensors);
  throwUser(ErrorCode::E0706, {.what = "an optimizer of LibTorch that the device does not have",
                               .expected = "torch::optim::SGD, Adam, AdamW or RMSprop, or one of abele::optim",
                               .remedy = "use abele::optim::LAMB or another of them"});
}

}  // namespace abele

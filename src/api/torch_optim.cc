// Converts optimizers of LibTorch to device optimizers. A file of its own, because LibTorch's headers compile slowly.
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <optional>
#include <set>
#include <typeinfo>
#include <utility>

#include "abele/optim.h"
#include "base/error.h"
#include "base/log.h"
#include "modules/module.h"

namespace abele {
namespace {

optim::SGD groupOf(const torch::optim::SGDOptions& o) {
  return {.lr = o.lr(),
          .momentum = o.momentum(),
          .dampening = o.dampening(),
          .weight_decay = o.weight_decay(),
          .nesterov = o.nesterov()};
}
template <class Group, class AdamOptions>
Group adamOf(const AdamOptions& o) {
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

const modules::NamedTensor& ownOf(const at::Tensor& parameter, const std::vector<modules::NamedTensor>& tensors) {
  const auto own =
      std::ranges::find_if(tensors, [&](const modules::NamedTensor& t) { return t.tensor.is_same(parameter); });
  ABELE_REQUIRE(own != tensors.end() && own->is_parameter, E0706,
                {.what = "the optimizer has a tensor that is not a parameter of the model",
                 .found = contiguousType(static_cast<DType>(parameter.scalar_type()), parameter.sizes().vec()).str(),
                 .remedy = "make the optimizer with the parameters() of the module that is wrapped"});
  return *own;
}

/// The model's names of a group's tensors. taken: names in earlier groups.
std::vector<std::string> namesOf(const torch::optim::OptimizerParamGroup& group,
                                 const std::vector<modules::NamedTensor>& tensors, std::set<std::string>& taken) {
  std::vector<std::string> names;
  for (const at::Tensor& parameter : group.params()) {
    const std::string& name = ownOf(parameter, tensors).name;
    ABELE_REQUIRE(
        taken.insert(name).second, E0706,
        {.what = cat("the optimizer has ", name, " several times, and LibTorch would update it as often"),
         .expected = "each parameter once",
         .remedy =
             "pass each parameter once: parameters() lists a submodule's once for each place where it is registered"});
    names.push_back(name);
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

template <class TorchOptions>
bool hasAmsgrad(const torch::optim::Optimizer& optimizer) {
  return std::ranges::any_of(optimizer.param_groups(), [](const torch::optim::OptimizerParamGroup& group) {
    return static_cast<const TorchOptions&>(group.options()).amsgrad();
  });
}

/// The optimizer of the devices, or nothing if they have none for it. A subclass may have a step() of its own.
std::optional<optim::Optimizer> onDevices(const torch::optim::Optimizer& optimizer,
                                          const std::vector<modules::NamedTensor>& tensors) {
  const std::type_info& type = typeid(optimizer);
  if (type == typeid(torch::optim::SGD)) return allGroups<torch::optim::SGDOptions>(optimizer, tensors);
  if (type == typeid(torch::optim::RMSprop)) return allGroups<torch::optim::RMSpropOptions>(optimizer, tensors);
  if (type == typeid(torch::optim::Adam) && !hasAmsgrad<torch::optim::AdamOptions>(optimizer))
    return allGroups<torch::optim::AdamOptions>(optimizer, tensors);
  if (type == typeid(torch::optim::AdamW) && !hasAmsgrad<torch::optim::AdamWOptions>(optimizer))
    return allGroups<torch::optim::AdamWOptions>(optimizer, tensors);
  return {};
}

optim::Optimizer onHost(torch::optim::Optimizer& optimizer, const std::vector<modules::NamedTensor>& tensors) {
  ABELE_REQUIRE(!dynamic_cast<const torch::optim::LBFGS*>(&optimizer), E0706,
                {.what = "LBFGS, whose step() needs a closure", .remedy = "take an optimizer whose step() needs none"});
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params()) ownOf(parameter, tensors);
  optim::Optimizer made = optim::SGD{};
  made.step_on_host = [&optimizer] { optimizer.step(); };
  return made;
}

}  // namespace

optim::Optimizer optim::fromTorch(const torch::optim::Optimizer& optimizer, const torch::nn::Module& module) {
  std::optional<Optimizer> found = onDevices(optimizer, modules::tensorsOf(module));
  ABELE_REQUIRE(
      found, E0706,
      {.what = "the devices do not have this optimizer, and a model cannot keep one that is const or temporary",
       .expected = "a torch::optim::SGD, Adam, AdamW or RMSprop without amsgrad",
       .remedy = "pass a variable that outlives the model, whose step() then runs on the host"});
  if (!optimizer.state().empty())
    log::warn("the optimizer of LibTorch has made steps: its moments stay behind, and those of the device begin at 0");
  return *std::move(found);
}

optim::Optimizer optim::fromTorch(torch::optim::Optimizer& optimizer, const torch::nn::Module& module) {
  const std::vector<modules::NamedTensor> tensors = modules::tensorsOf(module);
  return onDevices(optimizer, tensors) ? fromTorch(std::as_const(optimizer), module) : onHost(optimizer, tensors);
}

}  // namespace abele

// torch.optim's weight updates as torch's sequence of operators, to compare the devices' kernels with.
#include <cmath>
#include <memory>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "verification/verify.h"

namespace abele::verification {
namespace {

using Kind = passes::OptimizerRules::Kind;
using Hypers = std::map<std::string, double>;

/// An optimizer's state for one parameter. Undefined tensors were not needed so far.
struct State {
  double step = 0;
  at::Tensor first, second, average;
};

double numberOf(const Hypers& hypers, const char* name) {
  const auto it = hypers.find(name);
  return it == hypers.end() ? 0 : it->second;
}

at::Tensor withDecay(at::Tensor gradient, const at::Tensor& weight, const Hypers& hypers) {
  if (numberOf(hypers, "maximize") != 0) gradient = gradient.neg();
  const double decay = numberOf(hypers, "weight_decay");
  return decay == 0 ? gradient : gradient.add(weight, decay);
}

/// mean * beta + gradient * (1 - beta), in the rounding of Python's torch.optim or of LibTorch.
void moveMean(at::Tensor& mean, const at::Tensor& gradient, double beta, const Hypers& hypers) {
  if (numberOf(hypers, "libtorch") != 0)
    mean.mul_(beta).add_(gradient, 1 - beta);
  else
    mean.lerp_(gradient, 1 - beta);
}

void sgd(at::Tensor weight, at::Tensor gradient, const Hypers& hypers, State& state) {
  gradient = withDecay(gradient, weight, hypers);
  const double momentum = numberOf(hypers, "momentum");
  if (momentum != 0) {
    if (!state.first.defined())
      state.first = gradient.clone();
    else
      state.first.mul_(momentum).add_(gradient, 1 - numberOf(hypers, "dampening"));
    gradient = numberOf(hypers, "nesterov") != 0 ? gradient.add(state.first, momentum) : state.first;
  }
  weight.add_(gradient, -numberOf(hypers, "lr"));
}

void adam(at::Tensor weight, at::Tensor gradient, const Hypers& hypers, State& state, bool is_decoupled) {
  const double lr = numberOf(hypers, "lr"), beta1 = numberOf(hypers, "beta1"), beta2 = numberOf(hypers, "beta2");
  if (!is_decoupled) {
    gradient = withDecay(gradient, weight, hypers);
  } else {
    if (numberOf(hypers, "maximize") != 0) gradient = gradient.neg();
    if (const double decay = numberOf(hypers, "weight_decay"); decay != 0) weight.mul_(1 - lr * decay);
  }
  if (!state.first.defined()) {
    state.first = at::zeros_like(weight);
    state.second = at::zeros_like(weight);
  }
  state.step += 1;
  moveMean(state.first, gradient, beta1, hypers);
  state.second.mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
  const double correction1 = 1 - std::pow(beta1, state.step), correction2 = 1 - std::pow(beta2, state.step);
  const at::Tensor root = state.second.sqrt().div_(std::sqrt(correction2)).add_(numberOf(hypers, "eps"));
  weight.addcdiv_(state.first, root, -(lr / correction1));
}

void rmsprop(at::Tensor weight, at::Tensor gradient, const Hypers& hypers, State& state, bool is_centered) {
  gradient = withDecay(gradient, weight, hypers);
  const double alpha = numberOf(hypers, "alpha"), momentum = numberOf(hypers, "momentum");
  if (!state.second.defined()) {
    state.second = at::zeros_like(weight);
    state.average = at::zeros_like(weight);
    state.first = at::zeros_like(weight);
  }
  state.second.mul_(alpha).addcmul_(gradient, gradient, 1 - alpha);
  at::Tensor root;
  if (is_centered) {
    moveMean(state.average, gradient, alpha, hypers);
    root = state.second.addcmul(state.average, state.average, -1).sqrt_();
  } else {
    root = state.second.sqrt();
  }
  root.add_(numberOf(hypers, "eps"));
  if (momentum > 0) {
    state.first.mul_(momentum).addcdiv_(gradient, root);
    weight.add_(state.first, -numberOf(hypers, "lr"));
  } else {
    weight.addcdiv_(gradient, root, -numberOf(hypers, "lr"));
  }
}

bool isTorchs(const compile::OptimizerSpec& optimizer) {
  const passes::OptimizerRules& rules = optimizer.rules;
  const auto is_parameters = [](DType dtype) { return dtype == DType::kUndefined || dtype == DType::kFloat32; };
  const bool is_plain = is_parameters(rules.first_moment) && is_parameters(rules.second_moment);
  // PopTorch clips gradients by a rule that torch lacks.
  bool is_known = is_plain && std::isinf(rules.max_grad_norm) && rules.kind != Kind::kNone &&
                  (optimizerRow(rules.kind).traits & kOfTorch) != 0;
  for (const passes::OptimizerRules::Group& group : rules.groups)
    is_known = is_known && !group.amsgrad && !group.tf_variant;
  for (const Hypers& group : optimizer.groups) is_known = is_known && numberOf(group, "fused") == 0;
  return is_known;
}

}  // namespace

Update torchUpdate(const compile::OptimizerSpec& optimizer, const std::vector<capture::ModelTensor>& model) {
  if (!isTorchs(optimizer)) return {};
  auto states = std::make_shared<std::vector<State>>(model.size());
  return [optimizer, model, states](const std::vector<at::Tensor>& gradients) {
    const c10::AutoGradMode no_grad(false);
    for (size_t i = 0; i < model.size(); ++i) {
      const auto group = optimizer.rules.group_of.find(model[i].name);
      if (!gradients[i].defined() || group == optimizer.rules.group_of.end()) continue;
      const Hypers& hypers = optimizer.groups.at(group->second);
      const at::Tensor& weight = *model[i].tensor;
      switch (optimizer.rules.kind) {
        case Kind::kSgd: sgd(weight, gradients[i], hypers, (*states)[i]); break;
        case Kind::kAdam:
        case Kind::kAdamW:
          adam(weight, gradients[i], hypers, (*states)[i], optimizer.rules.kind == Kind::kAdamW);
          break;
        case Kind::kRmsprop:
          rmsprop(weight, gradients[i], hypers, (*states)[i], optimizer.rules.groups.at(group->second).centered);
          break;
        default: break;
      }
    }
  };
}

}  // namespace abele::verification

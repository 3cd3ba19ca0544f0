// For users of the library: optimizers that run on the device, with the arithmetic of Python's torch.optim, bit for
// bit. LibTorch's torch::optim rounds differently: the moments of its Adam, AdamW and centered RMSprop, and its SGD in
// float16 and bfloat16, differ in the last bit. With libtorch = true the device rounds as LibTorch does; fromTorch sets
// this flag. One struct is one parameter group. Pass several structs to give parameters different values.
//
//   abele::optim::AdamW{.lr = 1e-3}
//   abele::optim::Optimizer({abele::optim::SGD{.lr = 0.1, .parameters = {"encoder"}}, abele::optim::SGD{.lr = 0.01}})
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "abele/enums.h"
#include "abele/export.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace abele::optim {

/// v = momentum * v + (1 - dampening) * (g + weight_decay * w); w -= lr * v. As in torch, the first step takes the
/// whole gradient, and dampening has no effect without momentum. Whether dampening is 0 is fixed at compilation.
/// parameters: names or module paths ("encoder" takes encoder.0.weight); empty: every parameter that no other group
/// takes.
struct SGD {
  double lr = 0.01;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  bool fused = false;     // use torch's fused kernels, whose bits differ
  bool libtorch = false;  // round as torch::optim of LibTorch does, whose last bits differ from Python's
  std::vector<std::string> parameters = {};
};

struct Adam {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool maximize = false;
  bool fused = false;     // use torch's fused kernels, whose bits differ
  bool libtorch = false;  // round as torch::optim of LibTorch does, whose last bits differ from Python's
  std::vector<std::string> parameters = {};
};

/// Adam with decoupled weight decay.
struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool maximize = false;
  bool fused = false;     // use torch's fused kernels, whose bits differ
  bool libtorch = false;  // round as torch::optim of LibTorch does, whose last bits differ from Python's
  std::vector<std::string> parameters = {};
};

/// s = alpha * s + (1 - alpha) * g^2; w -= lr * g / (sqrt(s) + eps), with a velocity if momentum is not 0. centered:
/// use the variance instead of the mean square. use_tf_variant: eps is under the root, and s starts at 1.
struct RMSprop {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
  bool use_tf_variant = false;
  bool maximize = false;
  bool libtorch = false;  // round as torch::optim of LibTorch does, whose last bits differ from Python's
  std::vector<std::string> parameters = {};
};

/// AdamW's step, scaled per parameter by the norm of the parameter (at most max_weight_norm) over the norm of the step.
struct LAMB {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  double max_weight_norm = 65500;
  bool bias_correction = true;
  bool maximize = false;
  std::vector<std::string> parameters = {};
};

/// Which numbers of an optimizer may change after compilation: all that are not marked as constant. Names are those of
/// the groups' fields, and "loss_scaling".
class ABELE_API VariableAttributes {
 public:
  bool isConstant(const std::string& attribute) const;
  /// After this setOptimizer refuses another value (E0706). Throws E0706 for an attribute that no optimizer has.
  void markAsConstant(const std::string& attribute);
  /// A variable "momentum" has a velocity even if momentum is 0 at first. Throws as markAsConstant.
  void markAsVariable(const std::string& attribute);
  bool isMarkedVariable(const std::string& attribute) const { return variable_.contains(attribute); }

 private:
  std::set<std::string> constant_, variable_;
};

/// One kind of optimizer and its groups. After compilation setOptimizer may change the numbers, except max_grad_norm
/// and those marked as constant. Whether momentum is 0, the flags, the element types and the parameters of a group are
/// fixed too. Any other change throws E0706.
struct Optimizer {
  Optimizer(SGD group) : groups(std::vector<SGD>{std::move(group)}) {}
  Optimizer(Adam group) : groups(std::vector<Adam>{std::move(group)}) {}
  Optimizer(AdamW group) : groups(std::vector<AdamW>{std::move(group)}) {}
  Optimizer(RMSprop group) : groups(std::vector<RMSprop>{std::move(group)}) {}
  Optimizer(LAMB group) : groups(std::vector<LAMB>{std::move(group)}) {}
  Optimizer(std::vector<SGD> list) : groups(std::move(list)) {}
  Optimizer(std::vector<Adam> list) : groups(std::move(list)) {}
  Optimizer(std::vector<AdamW> list) : groups(std::move(list)) {}
  Optimizer(std::vector<RMSprop> list) : groups(std::move(list)) {}
  Optimizer(std::vector<LAMB> list) : groups(std::move(list)) {}

  std::variant<std::vector<SGD>, std::vector<Adam>, std::vector<AdamW>, std::vector<RMSprop>, std::vector<LAMB>> groups;
  /// Multiplies the loss before backward and divides the gradients after it, for float16. May change after compilation.
  double loss_scaling = 1;
  /// Scales gradients so that their joint norm is at most this. Fixed at compilation.
  double max_grad_norm = std::numeric_limits<double>::infinity();
  VariableAttributes variable_attrs;
  /// Element types of the gradient sums and of the first and second moments (a velocity is a first moment): kFloat or
  /// kHalf. Empty: the parameter's type, as in torch. Fixed at compilation.
  std::optional<FloatType> accum_type, velocity_accum_type, first_order_momentum_accum_type,
      second_order_momentum_accum_type;
  /// SGD: PopTorch keeps sums and velocity in one tensor. Here they stay two, both in float32. Fixed at compilation.
  bool use_combined_accum = false;
  /// A hint, for use_combined_accum.
  double velocity_scaling = 1;
  /// If set, updates the weights on the host: each call ends with this function, while the module's parameters have the
  /// sums of their gradients as grad(). A parameter that the loss does not reach has none. The groups are not used. If
  /// it throws, the call throws E0706, and what it wrote before stays, as in eager. One update a call, in one process.
  std::function<void()> step_on_host = {};
};

/// Takes the groups and numbers of a torch::optim::SGD, Adam, AdamW or RMSprop over parameters of the module. Ignores
/// the optimizer's state, with a warning if it has some. The steps are LibTorch's, bit for bit. Throws E0706 for
/// tensors of other modules, for a parameter that is listed several times, and for all other optimizers.
ABELE_API Optimizer fromTorch(const torch::optim::Optimizer& optimizer, const torch::nn::Module& module);
/// Also takes other classes, subclasses, and amsgrad: their own step() runs on the host (step_on_host). Requires: such
/// an optimizer outlives its model. Throws E0706 for tensors of other modules, and for LBFGS, whose step() needs a
/// closure.
ABELE_API Optimizer fromTorch(torch::optim::Optimizer& optimizer, const torch::nn::Module& module);

}  // namespace abele::optim

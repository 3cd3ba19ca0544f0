#include "kernels/optimizers.h"

#include <ATen/Parallel.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "base/error.h"
#include "kernels/basic.h"
#include "kernels/elementwise.h"
#include "kernels/fused_updates.h"
#include "kernels/parallel.h"

namespace abele::kernels {
namespace {

using Tensors = c10::SmallVector<at::Tensor, 4>;

// Elements that an update works on at once, so that a parameter, its gradient, two states and a scratch fit into a
// core's cache.
constexpr int64_t kPart = 16384;
// Elements in a range; fewer are not worth another thread.
constexpr int64_t kUpdateRange = 32768;

// A Python float as an operand. It has the parameter's own type if ATen would convert it at every call anyway. For half
// types it stays a double, because ATen then computes with its exact value.
at::Tensor number(double value, c10::ScalarType type) {
  at::Tensor tensor = type == at::kFloat ? c10::scalar_to_tensor(value).to(at::kFloat) : c10::scalar_to_tensor(value);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// The factor of an in-place product. LibTorch's own optimizers call mul_ with a number, which rounds it to the tensor's
// type; Python's do not.
at::Tensor factor(double value, c10::ScalarType type, const Hyper& hyper) {
  at::Tensor tensor = number(value, type);
  if (!hyper.libtorch || tensor.scalar_type() == type) return tensor;
  tensor = c10::scalar_to_tensor(value).to(type);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// Elements [begin, begin + count) in memory order.
at::Tensor window(const at::Tensor& tensor, int64_t begin, int64_t count) {
  at::Tensor part = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  part.unsafeGetTensorImpl()->set_sizes_contiguous(count);
  part.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset() + begin);
  return part;
}

bool haveOneLayout(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.is_non_overlapping_and_dense() && tensor.strides() == tensors[0].strides();
  });
}

// Calls fn(tensors, scratch) for parts that fit into the cache, on the intra-op threads. Updates are elementwise, so
// parts give the same bits as the whole.
template <class Fn>
void forEachPart(const Tensors& tensors, const Fn& fn) {
  const int64_t elements = tensors[0].numel();
  if (elements <= kPart || !tensors[0].is_cpu() || !haveOneLayout(tensors)) {
    fn(tensors, at::empty_like(tensors[0]));
    return;
  }
  const at::Tensor scratches = at::empty({at::get_num_threads() * kPart}, tensors[0].options());
  shareOut((elements + kPart - 1) / kPart, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      const int64_t begin = part * kPart, count = std::min(kPart, elements - begin);
      Tensors windows;
      for (const at::Tensor& tensor : tensors) windows.push_back(window(tensor, begin, count));
      fn(windows, window(scratches, at::get_thread_num() * kPart, count));
    }
  });
}

// An update's tensors in one element type, the widest of them. Number 1 is the gradient, which is only read.
class InOneType {
 public:
  explicit InOneType(Tensors given) : given_(std::move(given)), used_(given_) {
    c10::ScalarType type = given_[0].scalar_type();
    for (const at::Tensor& tensor : given_)
      if (tensor.defined()) type = c10::promoteTypes(type, tensor.scalar_type());
    for (at::Tensor& tensor : used_)
      if (tensor.defined() && tensor.scalar_type() != type) tensor = tensor.to(type);
  }
  const Tensors& tensors() const { return used_; }
  const at::Tensor& operator[](std::size_t i) const { return used_[i]; }
  // Copies results back into their own tensors.
  void store() const {
    for (std::size_t i = 0; i < used_.size(); ++i)
      if (i != 1 && used_[i].defined() && !used_[i].is_same(given_[i])) copyInto(given_[i], used_[i]);
  }

 private:
  Tensors given_, used_;
};

// The gradient that every update starts from: the scaled sum, negated if the loss is maximised, with the L2 term.
at::Tensor gradientOf(const at::Tensor& param, const at::Tensor& sum, at::Tensor& scratch, const at::Tensor& scale,
                      double decay, const Hyper& hyper) {
  at::Tensor gradient = sum;
  if (hyper.gradient_scale != 1) gradient = ops::mul_out(scratch, gradient, scale);
  if (hyper.maximize) gradient = ops::neg_out(scratch, gradient);
  if (decay != 0) gradient = ops::add_out(scratch, gradient, param, decay);
  return gradient;
}

// Views complex numbers as pairs of real ones.
at::Tensor asReal(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

// For complex parameters, torch scales, negates and decays the gradient before it splits real and imaginary parts. This
// does the same. Returns: the numbers for the rest of the update. decay: of the gradient.
Hyper withComplexGradient(const at::Tensor& param, double decay, at::Tensor& gradient, Hyper hyper) {
  if (!param.is_complex()) return hyper;
  at::Tensor scratch = at::empty_like(param);
  const at::Tensor scale = number(hyper.gradient_scale, param.scalar_type());
  gradient = gradientOf(param, gradient, scratch, scale, decay, hyper);
  hyper.gradient_scale = 1;
  hyper.maximize = false;
  if (decay != 0) hyper.weight_decay = 0;
  return hyper;
}

double normOf(const at::Tensor& given) {
  const at::Tensor tensor = asReal(given);
  return at::linalg_vector_norm(tensor, 2, std::nullopt, false, at::kDouble).item<double>();
}

// Updates by ATen's operators: any element type and layout ----------------------------------------------------------
void sgdByOperators(const Tensors& tensors, const Hyper& hyper) {
  const at::Tensor scale = number(hyper.gradient_scale, tensors[0].scalar_type());
  const at::Tensor mu = factor(hyper.momentum, tensors[0].scalar_type(), hyper);
  forEachPart(tensors, [&](const Tensors& part, at::Tensor scratch) {
    at::Tensor weight = part[0];
    at::Tensor grad = gradientOf(weight, part[1], scratch, scale, hyper.weight_decay, hyper);
    if (part.size() == 2) {
      ops::add_(weight, grad, -(hyper.lr * (1 - hyper.dampening)));
      return;
    }
    at::Tensor velocity = part[2];
    ops::mul_(velocity, mu);
    ops::add_(velocity, grad, 1 - hyper.dampening);
    if (hyper.nesterov) ops::add_out(scratch, grad, velocity, hyper.momentum);
    ops::add_(weight, hyper.nesterov ? scratch : velocity, -hyper.lr);
  });
}

// Adam's numbers in the current step.
struct AdamStep {
  /// by_lists: there torch takes a number out of a tensor lr, and rounds nothing.
  AdamStep(const Hyper& hyper, double count, bool decoupled_weight_decay, bool by_lists = false)
      : l2(decoupled_weight_decay ? 0 : hyper.weight_decay),
        shrinkage(decoupled_weight_decay ? 1 - hyper.lr * hyper.weight_decay : 1),
        root(std::pow(1 - std::pow(hyper.beta2, count), 0.5)),
        rate(-(hyper.lr / (1 - std::pow(hyper.beta1, count)))) {
    if (hyper.libtorch) root = std::sqrt(1 - std::pow(hyper.beta2, count));
    if (!hyper.rounds_rate || by_lists) return;
    const auto lr = static_cast<float>(hyper.lr);
    const float decayed = lr * static_cast<float>(hyper.weight_decay);
    if (decoupled_weight_decay) shrinkage = 1.0F - decayed;
    rate = -(lr / static_cast<float>(1 - std::pow(hyper.beta1, count)));
  }
  double l2, shrinkage, root, rate;
};

// A mean of gradients: mean * beta + gradient * (1 - beta). weight: beta as a factor of the mean's type.
void moveMean(at::Tensor& mean, const at::Tensor& gradient, double beta, const at::Tensor& weight, const Hyper& hyper) {
  if (!hyper.libtorch) {
    ops::lerp_(mean, gradient, 1 - beta);
    return;
  }
  ops::mul_(mean, weight);
  ops::add_(mean, gradient, 1 - beta);
}

void adamByOperators(const Tensors& tensors, const AdamStep& step, const Hyper& hyper) {
  const c10::ScalarType type = tensors[0].scalar_type();
  const at::Tensor scale = number(hyper.gradient_scale, type);
  const at::Tensor shrinkage = factor(step.shrinkage, type, hyper);
  const at::Tensor beta1 = factor(hyper.beta1, type, hyper), beta2 = factor(hyper.beta2, type, hyper);
  const at::Tensor root = number(step.root, type);
  const at::Tensor eps = number(hyper.eps, type);
  forEachPart(tensors, [&](const Tensors& part, at::Tensor scratch) {
    at::Tensor weight = part[0], average = part[2], square = part[3];
    if (step.shrinkage != 1) ops::mul_(weight, shrinkage);
    const at::Tensor grad = gradientOf(weight, part[1], scratch, scale, step.l2, hyper);
    moveMean(average, grad, hyper.beta1, beta1, hyper);
    ops::mul_(square, beta2);
    ops::addcmul_(square, grad, grad, 1 - hyper.beta2);
    at::Tensor denominator = ops::sqrt_out(scratch, square);
    ops::div_(denominator, root);
    ops::add_(denominator, eps);
    ops::addcdiv_(weight, average, denominator, step.rate);
  });
}

// Which states an RMSprop keeps in addition to the mean square.
struct RmspropKind {
  bool centered, has_momentum, tf_variant;
};

void rmspropByOperators(const Tensors& tensors, const RmspropKind& kind, const Hyper& hyper) {
  const c10::ScalarType type = tensors[0].scalar_type();
  const at::Tensor scale = number(hyper.gradient_scale, type);
  const at::Tensor alpha = factor(hyper.alpha, type, hyper), mu = factor(hyper.momentum, type, hyper);
  const at::Tensor eps = number(hyper.eps, type);
  forEachPart(tensors, [&](const Tensors& part, at::Tensor scratch) {
    at::Tensor weight = part[0], mean_square = part[2];
    at::Tensor grad = gradientOf(weight, part[1], scratch, scale, hyper.weight_decay, hyper);
    // The gradient may be in the scratch memory, which the denominator needs.
    if (grad.is_same(scratch)) grad = grad.clone();
    ops::mul_(mean_square, alpha);
    ops::addcmul_(mean_square, grad, grad, 1 - hyper.alpha);
    at::Tensor denominator = scratch;
    if (kind.centered) {
      at::Tensor mean = part[3];
      moveMean(mean, grad, hyper.alpha, alpha, hyper);
      ops::addcmul_out(denominator, mean_square, mean, mean, -1);
    } else {
      copyInto(denominator, mean_square);
    }
    if (kind.tf_variant) ops::add_(denominator, eps);
    ops::sqrt_(denominator);
    if (!kind.tf_variant) ops::add_(denominator, eps);
    if (!kind.has_momentum) {
      ops::addcdiv_(weight, grad, denominator, -hyper.lr);
      return;
    }
    at::Tensor velocity = part[kind.centered ? 4 : 3];
    ops::mul_(velocity, mu);
    ops::addcdiv_(velocity, grad, denominator, kind.tf_variant ? hyper.lr : 1);
    ops::add_(weight, velocity, kind.tf_variant ? -1 : -hyper.lr);
  });
}

// Updates by torch's operators on lists, which torch.optim uses on accelerators; their bits differ from those of single
// tensors. The length of a list changes no element.
using List = std::vector<at::Tensor>;

List gradientByLists(const List& weights, const List& sums, double decay, const Hyper& hyper) {
  List gradients = sums;
  if (hyper.gradient_scale != 1) gradients = at::_foreach_mul(gradients, hyper.gradient_scale);
  if (hyper.maximize) gradients = at::_foreach_neg(gradients);
  if (decay != 0) gradients = at::_foreach_add(gradients, weights, decay);
  return gradients;
}

void sgdByLists(const Tensors& tensors, const Hyper& hyper) {
  const List weight = {tensors[0]};
  List gradient = gradientByLists(weight, {tensors[1]}, hyper.weight_decay, hyper);
  if (tensors.size() == 2) return at::_foreach_add_(weight, gradient, -(hyper.lr * (1 - hyper.dampening)));
  const List velocity = {tensors[2]};
  at::_foreach_mul_(velocity, hyper.momentum);
  at::_foreach_add_(velocity, gradient, 1 - hyper.dampening);
  if (hyper.nesterov) gradient = at::_foreach_add(gradient, velocity, hyper.momentum);
  at::_foreach_add_(weight, hyper.nesterov ? gradient : velocity, -hyper.lr);
}

// Parameters of one group. steps: the step of each, with one shrinkage and one decay for all.
struct AdamLists {
  List weights, sums, averages, squares;
  std::vector<AdamStep> steps;

  void add(const Tensors& tensors, const AdamStep& step) {
    weights.push_back(tensors[0]);
    sums.push_back(tensors[1]);
    averages.push_back(tensors[2]);
    squares.push_back(tensors[3]);
    steps.push_back(step);
  }
};

AdamLists listsOf(const Tensors& tensors, const AdamStep& step) {
  AdamLists lists;
  lists.add(tensors, step);
  return lists;
}

void adamByLists(const AdamLists& all, const Hyper& hyper) {
  const AdamStep& any = all.steps.front();
  if (any.shrinkage != 1) at::_foreach_mul_(all.weights, any.shrinkage);
  const List gradients = gradientByLists(all.weights, all.sums, any.l2, hyper);
  at::_foreach_lerp_(all.averages, gradients, 1 - hyper.beta1);
  at::_foreach_mul_(all.squares, hyper.beta2);
  at::_foreach_addcmul_(all.squares, gradients, gradients, 1 - hyper.beta2);
  const List denominators = at::_foreach_sqrt(all.squares);
  std::vector<at::Scalar> roots, rates;
  for (const AdamStep& step : all.steps) {
    roots.emplace_back(step.root);
    rates.emplace_back(step.rate);
  }
  at::_foreach_div_(denominators, roots);
  at::_foreach_add_(denominators, hyper.eps);
  at::_foreach_addcdiv_(all.weights, all.averages, denominators, rates);
}

void rmspropByLists(const Tensors& tensors, const RmspropKind& kind, const Hyper& hyper) {
  const List weight = {tensors[0]}, mean_square = {tensors[2]};
  const List gradient = gradientByLists(weight, {tensors[1]}, hyper.weight_decay, hyper);
  at::_foreach_mul_(mean_square, hyper.alpha);
  at::_foreach_addcmul_(mean_square, gradient, gradient, 1 - hyper.alpha);
  List denominator;
  if (kind.centered) {
    const List mean = {tensors[3]};
    at::_foreach_lerp_(mean, gradient, 1 - hyper.alpha);
    denominator = at::_foreach_addcmul(mean_square, mean, mean, -1);
    at::_foreach_sqrt_(denominator);
  } else {
    denominator = at::_foreach_sqrt(mean_square);
  }
  at::_foreach_add_(denominator, hyper.eps);
  if (!kind.has_momentum) return at::_foreach_addcdiv_(weight, gradient, denominator, -hyper.lr);
  const List velocity = {tensors[kind.centered ? 4 : 3]};
  at::_foreach_mul_(velocity, hyper.momentum);
  at::_foreach_addcdiv_(velocity, gradient, denominator);
  at::_foreach_add_(weight, velocity, -hyper.lr);
}

// Updates in few passes over memory: dense float32 of one layout
// -------------------------------------------------------
float asFloat(double value) { return static_cast<float>(value); }

kernels::fused::Gradient fusedGradient(const Hyper& hyper, double decay) {
  return {asFloat(hyper.maximize ? -hyper.gradient_scale : hyper.gradient_scale), asFloat(decay)};
}

float* pointerTo(const at::Tensor& tensor) { return static_cast<float*>(tensor.data_ptr()); }

class Pointers {
 public:
  explicit Pointers(const Tensors& tensors) {
    for (const at::Tensor& tensor : tensors) starts_.push_back(pointerTo(tensor));
  }
  float* operator[](std::size_t i) const { return starts_[i]; }

 private:
  c10::SmallVector<float*, 5> starts_;
};

void sgdFused(const Tensors& tensors, const Hyper& hyper) {
  const bool has_momentum = tensors.size() > 2;
  const kernels::fused::Sgd with{.gradient = fusedGradient(hyper, hyper.weight_decay),
                                 .momentum = asFloat(hyper.momentum),
                                 .taken = asFloat(1 - hyper.dampening),
                                 .rate = asFloat(has_momentum ? -hyper.lr : -(hyper.lr * (1 - hyper.dampening))),
                                 .nesterov = hyper.nesterov};
  const Pointers at(tensors);
  shareOut(tensors[0].numel(), kUpdateRange, [&](int64_t begin, int64_t end) {
    kernels::fused::update(end - begin, at[0] + begin, at[1] + begin, has_momentum ? at[2] + begin : nullptr, with);
  });
}

void adamFused(const Tensors& tensors, const AdamStep& step, const Hyper& hyper) {
  const kernels::fused::Adam with{.gradient = fusedGradient(hyper, step.l2),
                                  .shrinkage = asFloat(step.shrinkage),
                                  .taken = asFloat(1 - hyper.beta1),
                                  .kept = asFloat(hyper.beta1),
                                  .lerps = !hyper.libtorch,
                                  .beta2 = asFloat(hyper.beta2),
                                  .taken2 = asFloat(1 - hyper.beta2),
                                  .root = asFloat(step.root),
                                  .eps = asFloat(hyper.eps),
                                  .rate = asFloat(step.rate)};
  forEachPart(tensors, [&](const Tensors& part, at::Tensor scratch) {
    const int64_t count = scratch.numel();
    const Pointers at(part);
    kernels::fused::updateStates(count, at[0], at[1], at[2], at[3], with);
    ops::sqrt_out(scratch, part[3]);
    kernels::fused::updateWeights(count, at[0], at[2], pointerTo(scratch), with);
  });
}

void rmspropFused(const Tensors& tensors, const RmspropKind& kind, const Hyper& hyper) {
  const kernels::fused::Rmsprop with{.gradient = fusedGradient(hyper, hyper.weight_decay),
                                     .alpha = asFloat(hyper.alpha),
                                     .taken = asFloat(1 - hyper.alpha),
                                     .lerps = !hyper.libtorch,
                                     .eps = asFloat(hyper.eps),
                                     .eps_under_root = kind.tf_variant,
                                     .momentum = asFloat(hyper.momentum),
                                     .velocity_rate = kind.tf_variant ? asFloat(hyper.lr) : 1,
                                     .rate = kind.tf_variant && kind.has_momentum ? -1 : asFloat(-hyper.lr)};
  forEachPart(tensors, [&](const Tensors& part, at::Tensor scratch) {
    const int64_t count = scratch.numel();
    const Pointers at(part);
    kernels::fused::updateStates(count, at[0], at[1], at[2], kind.centered ? at[3] : nullptr, pointerTo(scratch), with);
    ops::sqrt_(scratch);
    kernels::fused::updateWeights(count, at[0], at[1], pointerTo(scratch),
                                  kind.has_momentum ? at[kind.centered ? 4 : 3] : nullptr, with);
  });
}

// Operands for a trial: different numbers in [0, 1). The mean square of RMSprop is in [1, 2), because it must be larger
// than the square of the mean.
Tensors trialTensors(int64_t number) {
  Tensors tensors;
  uint32_t state = 1;
  for (int64_t i = 0; i < number; ++i) {
    at::Tensor tensor = at::empty({101}, at::kFloat);
    float* values = tensor.mutable_data_ptr<float>();
    for (int64_t k = 0; k < tensor.numel(); ++k) {
      state = state * 1664525U + 1013904223U;
      values[k] = static_cast<float>(state >> 8) / static_cast<float>(1 << 24) + (i == 2 ? 1.0F : 0.0F);
    }
    tensors.push_back(tensor);
  }
  return tensors;
}

template <class ByOperators, class Fused>
bool sameBits(int64_t number, const ByOperators& by_operators, const Fused& fused) {
  const Tensors expected = trialTensors(number), found = trialTensors(number);
  by_operators(expected);
  fused(found);
  for (int64_t i = 0; i < number; ++i)
    if (std::memcmp(expected[i].const_data_ptr(), found[i].const_data_ptr(), expected[i].nbytes()) != 0) return false;
  return true;
}

// Whether the fused updates round as this LibTorch's kernels do on this processor.
bool fusedUpdatesAgree() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return false;
#endif
  Hyper hyper;
  hyper.lr = 0.03;
  hyper.momentum = 0.7;
  hyper.dampening = 0.3;
  hyper.weight_decay = 0.11;
  hyper.gradient_scale = 0.3;
  const RmspropKind kind{.centered = true, .has_momentum = true, .tf_variant = false};
  const auto adamAgrees = [&] {
    const AdamStep step(hyper, 3, false);
    return sameBits(
        4, [&](const Tensors& all) { adamByOperators(all, step, hyper); },
        [&](const Tensors& all) { adamFused(all, step, hyper); });
  };
  const auto rmspropAgrees = [&] {
    return sameBits(
        5, [&](const Tensors& all) { rmspropByOperators(all, kind, hyper); },
        [&](const Tensors& all) { rmspropFused(all, kind, hyper); });
  };
  for (const int trial : {0, 1, 2}) {
    const bool nesterov = trial == 1;
    hyper.nesterov = nesterov;
    hyper.libtorch = trial == 2;
    hyper.beta1 = hyper.alpha = nesterov ? 0.9 : 0.2;  // both branches of at::lerp
    if (!sameBits(
            3, [&](const Tensors& all) { sgdByOperators(all, hyper); },
            [&](const Tensors& all) { sgdFused(all, hyper); }) ||
        !adamAgrees() || !rmspropAgrees())
      return false;
  }
  return true;
}

bool canFuse(const Tensors& tensors) {
  static const bool agree = fusedUpdatesAgree();
  return agree && tensors[0].is_cpu() && tensors[0].scalar_type() == at::kFloat && haveOneLayout(tensors);
}

// Updates by torch's fused kernels: calls as torch/optim's, with one tensor in each list
// -------------------------------
at::Tensor scaled(const at::Tensor& sum, const Hyper& hyper) {
  return hyper.gradient_scale == 1 ? sum : kernels::ops::mul(sum, number(hyper.gradient_scale, sum.scalar_type()));
}

void sgdByTorch(const Tensors& tensors, bool is_first, const Hyper& hyper) {
  std::vector<at::Tensor> velocities;
  if (hyper.momentum != 0) velocities.push_back(tensors[2]);
  at::_fused_sgd_({tensors[0]}, {scaled(tensors[1], hyper)}, velocities, hyper.weight_decay, hyper.momentum, hyper.lr,
                  hyper.dampening, hyper.nesterov, hyper.maximize, is_first);
}

void adamByTorch(const Tensors& tensors, const at::Tensor& step, bool decoupled_weight_decay, const Hyper& hyper) {
  const auto call = [&](const auto& update) {
    update({tensors[0]}, {scaled(tensors[1], hyper)}, {tensors[2]}, {tensors[3]}, {}, {step}, hyper.lr, hyper.beta1,
           hyper.beta2, hyper.weight_decay, hyper.eps, /*amsgrad=*/false, hyper.maximize, {}, {});
  };
  using TensorList = at::TensorList;
  using Maybe = const std::optional<at::Tensor>&;
  using Update = void (*)(TensorList, TensorList, TensorList, TensorList, TensorList, TensorList, double, double,
                          double, double, double, bool, bool, Maybe, Maybe);
  call(decoupled_weight_decay ? static_cast<Update>(at::_fused_adamw_) : static_cast<Update>(at::_fused_adam_));
}

}  // namespace

bool setNumber(Hyper& hyper, const std::string& name, double value) {
#define ABELE_HYPER(field, type, ...)       \
  if (name == #field) {                     \
    hyper.field = static_cast<type>(value); \
    return true;                            \
  }
#include "base/optimizers.def"
  if (name == "gradient_scale")
    hyper.gradient_scale = value;
  else if (name == "fused")
    hyper.fused = value != 0;
  else if (name == "libtorch")
    hyper.libtorch = value != 0;
  else if (name == "rounds_rate")
    hyper.rounds_rate = value != 0;
  else
    return false;
  return true;
}

void updateSgd(const at::Tensor& param, const at::Tensor& gradient, const at::Tensor& velocity, const at::Tensor& step,
               const Hyper& given_hyper) {
  Hyper hyper = given_hyper;
  at::Tensor momentum = velocity;
  bool is_first = false;
  if (step.defined()) {
    float& count = *step.mutable_data_ptr<float>();
    is_first = count == 0;
    if (is_first || hyper.momentum == 0) hyper.dampening = 0;
    if (hyper.momentum == 0)
      momentum = at::Tensor();
    else
      count += 1;
  }
  ABELE_REQUIRE(momentum.defined() || hyper.momentum == 0, E0706,
                {.what = cat("momentum ", hyper.momentum, " for a parameter that was compiled without momentum"),
                 .remedy = "give the optimizer its momentum before the model is compiled"});
  Tensors given = {param, gradient};
  if (momentum.defined()) given.push_back(momentum);
  const InOneType all(std::move(given));
  if (hyper.fused)
    sgdByTorch(all.tensors(), is_first, hyper);
  else if (!param.is_cpu() && !hyper.libtorch)
    sgdByLists(all.tensors(), hyper);
  else
    canFuse(all.tensors()) ? sgdFused(all.tensors(), hyper) : sgdByOperators(all.tensors(), hyper);
  all.store();
}

void updateAdam(const std::vector<AdamTensors>& all, bool decoupled_weight_decay, const Hyper& hyper) {
  std::map<c10::ScalarType, AdamLists> lists;  // torch makes lists with one element type
  for (const AdamTensors& one : all) {
    const auto isOfType = [&](const at::Tensor& tensor) { return tensor.scalar_type() == one.param.scalar_type(); };
    if (hyper.fused || hyper.libtorch || one.param.is_cpu() || one.param.is_complex() || !isOfType(one.gradient) ||
        !isOfType(one.exp_avg) || !isOfType(one.exp_avg_sq)) {
      updateAdam(one.param, one.gradient, one.exp_avg, one.exp_avg_sq, one.step, decoupled_weight_decay, hyper);
      continue;
    }
    float& count = *one.step.mutable_data_ptr<float>();
    count += 1;
    lists[one.param.scalar_type()].add({one.param, one.gradient, one.exp_avg, one.exp_avg_sq},
                                       AdamStep(hyper, count, decoupled_weight_decay, /*by_lists=*/true));
  }
  for (const auto& [type, list] : lists) adamByLists(list, hyper);
}

void updateAdam(const at::Tensor& param, const at::Tensor& sum, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                const at::Tensor& step, bool decoupled_weight_decay, const Hyper& given_hyper) {
  at::Tensor gradient = sum;
  const Hyper hyper =
      withComplexGradient(param, decoupled_weight_decay ? 0 : given_hyper.weight_decay, gradient, given_hyper);
  float& count = *step.mutable_data_ptr<float>();
  count += 1;
  const bool by_lists = !param.is_cpu() && !hyper.libtorch;
  const AdamStep now(hyper, static_cast<double>(count), decoupled_weight_decay, by_lists);
  const InOneType all({asReal(param), asReal(gradient), asReal(exp_avg), asReal(exp_avg_sq)});
  if (hyper.fused)
    adamByTorch(all.tensors(), step, decoupled_weight_decay, hyper);
  else if (by_lists)
    adamByLists(listsOf(all.tensors(), now), hyper);
  else
    canFuse(all.tensors()) ? adamFused(all.tensors(), now, hyper) : adamByOperators(all.tensors(), now, hyper);
  all.store();
}

void updateRmsprop(const at::Tensor& param, const at::Tensor& sum, const at::Tensor& square, const at::Tensor& average,
                   const at::Tensor& buffer, bool tf_variant, const Hyper& given_hyper) {
  at::Tensor gradient = sum;
  const Hyper hyper = withComplexGradient(param, given_hyper.weight_decay, gradient, given_hyper);
  Tensors given = {asReal(param), asReal(gradient), asReal(square)};
  if (average.defined()) given.push_back(asReal(average));
  if (buffer.defined()) given.push_back(asReal(buffer));
  const InOneType all(std::move(given));
  const RmspropKind kind{average.defined(), buffer.defined(), tf_variant};
  if (!param.is_cpu() && !tf_variant && !hyper.libtorch)  // torch has no other implementation there
    rmspropByLists(all.tensors(), kind, hyper);
  else
    canFuse(all.tensors()) ? rmspropFused(all.tensors(), kind, hyper) : rmspropByOperators(all.tensors(), kind, hyper);
  all.store();
}

void updateLamb(const at::Tensor& param, const at::Tensor& gradient, const at::Tensor& exp_avg,
                const at::Tensor& exp_avg_sq, const at::Tensor& step, bool bias_correction, const Hyper& hyper) {
  float& count = *step.mutable_data_ptr<float>();
  count += 1;
  const double t = static_cast<double>(count);
  const double correction1 = bias_correction ? 1 - std::pow(hyper.beta1, t) : 1;
  const double correction2 = bias_correction ? 1 - std::pow(hyper.beta2, t) : 1;
  const InOneType all({param, gradient, exp_avg, exp_avg_sq});
  const c10::ScalarType type = all[0].scalar_type();
  at::Tensor weight = all[0], average = all[2], square = all[3];
  at::Tensor scratch = at::empty_like(weight);
  const at::Tensor scale = number(hyper.gradient_scale, type);
  const at::Tensor grad = gradientOf(weight, all[1], scratch, scale, /*decay=*/0, hyper);
  ops::mul_(average, number(hyper.beta1, type));
  ops::add_(average, grad, 1 - hyper.beta1);
  ops::mul_(square, number(hyper.beta2, type));
  ops::addcmul_(square, grad, grad, 1 - hyper.beta2);
  at::Tensor update = ops::div(square, number(correction2, type));
  ops::sqrt_(update);
  ops::add_(update, number(hyper.eps, type));
  ops::div_out(update, ops::div(average, number(correction1, type)), update);
  if (hyper.weight_decay != 0) ops::add_(update, weight, hyper.weight_decay);
  const double weight_norm = std::min(normOf(weight), hyper.max_weight_norm), update_norm = normOf(update);
  const double trust = weight_norm == 0 || update_norm == 0 ? 1 : weight_norm / update_norm;
  ops::add_(weight, update, -(hyper.lr * trust));
  all.store();
}

double clipFactor(const std::vector<at::Tensor>& gradients, double scale, double max_norm) {
  double squares = 0;
  for (const at::Tensor& gradient : gradients) {
    const double norm = normOf(gradient) * scale;
    squares += norm * norm;
  }
  return max_norm / std::max(std::sqrt(squares), max_norm);
}

bool areFinite(const std::vector<at::Tensor>& gradients) {
  return std::all_of(gradients.begin(), gradients.end(), [](const at::Tensor& gradient) {
    return gradient.numel() == 0 ||
           std::isfinite(
               at::linalg_vector_norm(asReal(gradient), std::numeric_limits<double>::infinity()).item().toDouble());
  });
}

}  // namespace abele::kernels

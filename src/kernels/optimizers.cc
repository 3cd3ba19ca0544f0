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
#include <array>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/basic.h"
#include "kernels/elementwise.h"
#include "kernels/fused_updates.h"
#include "kernels/parallel.h"

namespace abele::kernels {
namespace {

using Tensors = decltype(UpdateTensors::tensors);
using Step = AdamStep<double>;

// Elements that an update works on at once, so that a parameter, its gradient, two states and a scratch fit into a
// core's cache.
constexpr int64_t kPart = 16384;
// Elements in a range; fewer are not worth another thread.
constexpr int64_t kUpdateRange = 32768;

// A Python float as an operand. It has the parameter's own type if ATen would convert it at every call anyway. For half
// types it stays a double, because ATen then computes with its exact value.
at::Tensor number(double value, c10::ScalarType type) {
  at::Tensor tensor = type == at::kFloat ? at::detail::scalar_tensor_static(static_cast<float>(value), type, at::kCPU)
                                         : c10::scalar_to_tensor(value);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// The factor of an in-place product. LibTorch's own optimizers call mul_ with a number, which rounds it to the tensor's
// type; Python's do not.
at::Tensor factor(double value, c10::ScalarType type, bool as_libtorch) {
  at::Tensor tensor = number(value, type);
  if (!as_libtorch || tensor.scalar_type() == type) return tensor;
  tensor = c10::scalar_to_tensor(value).to(type);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// Elements [begin, begin + count) in memory order.
at::Tensor window(const at::Tensor& tensor, int64_t begin, int64_t count) {
  if (!tensor.defined()) return tensor;
  at::Tensor part = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  part.unsafeGetTensorImpl()->set_sizes_contiguous(count);
  part.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset() + begin);
  return part;
}

bool haveOneLayout(const Tensors& tensors) {
  return std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
    return !tensor.defined() || (tensor.is_non_overlapping_and_dense() && tensor.strides() == tensors[0].strides());
  });
}

// Calls fn(tensors, scratch) for parts that fit into the cache, on the intra-op threads. Updates are elementwise, so
// parts give the same bits as the whole.
template <class Fn>
void forEachPart(const Tensors& tensors, const Fn& fn) {
  const int64_t elements = tensors[0].numel();
  if (elements <= kPart || !tensors[0].is_cpu() || !haveOneLayout(tensors)) {
    fn(Tensors(tensors), at::empty_like(tensors[0]));
    return;
  }
  const at::Tensor scratches = at::empty({at::get_num_threads() * kPart}, tensors[0].options());
  shareOut((elements + kPart - 1) / kPart, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      const int64_t begin = part * kPart, count = std::min(kPart, elements - begin);
      Tensors windows;
      for (const at::Tensor& tensor : tensors) windows.push_back(window(tensor, begin, count));
      fn(std::move(windows), window(scratches, at::get_thread_num() * kPart, count));
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
  // Copies results back into their own tensors.
  void store() const {
    for (std::size_t i = 0; i < used_.size(); ++i)
      if (i != 1 && used_[i].defined() && !used_[i].is_same(given_[i])) copyInto(given_[i], used_[i]);
  }

 private:
  Tensors given_, used_;
};

// Views complex numbers as pairs of real ones.
at::Tensor asReal(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

double normOf(const at::Tensor& given) {
  const at::Tensor tensor = asReal(given);
  return at::linalg_vector_norm(tensor, 2, std::nullopt, false, at::kDouble).item<double>();
}

// The operators of update_formulas.h ---------------------------------------------------------------------------------
// On tensors of any element type and layout. New values are in the scratch memory.
struct OnTensors {
  void mul_(at::Tensor& self, double by) const { ops::mul_(self, factor(by, self.scalar_type(), as_libtorch)); }
  void div_(at::Tensor& self, double by) const { ops::div_(self, number(by, self.scalar_type())); }
  void add_(at::Tensor& self, double term) const { ops::add_(self, number(term, self.scalar_type())); }
  void add_(at::Tensor& self, const at::Tensor& term, double alpha) const { ops::add_(self, term, alpha); }
  void lerp_(at::Tensor& self, const at::Tensor& to, double weight) const { ops::lerp_(self, to, weight); }
  void addcmul_(at::Tensor& self, const at::Tensor& b, const at::Tensor& c, double value) const {
    ops::addcmul_(self, b, c, value);
  }
  void addcdiv_(at::Tensor& self, const at::Tensor& b, const at::Tensor& c, double value) const {
    ops::addcdiv_(self, b, c, value);
  }
  at::Tensor scaled(at::Tensor a, double by, bool is_negated) const {
    if (by != 1) a = ops::mul_out(into(), a, number(by, a.scalar_type()));
    return is_negated ? ops::neg_out(into(), a) : a;
  }
  at::Tensor add(const at::Tensor& a, double term) const {
    return ops::add_out(into(), a, number(term, a.scalar_type()));
  }
  at::Tensor add(const at::Tensor& a, const at::Tensor& b, double alpha) const {
    return ops::add_out(into(), a, b, alpha);
  }
  at::Tensor addcmul(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, double value) const {
    return ops::addcmul_out(into(), a, b, c, value);
  }
  at::Tensor sqrt(const at::Tensor& a) const { return ops::sqrt_out(into(), a); }
  at::Tensor kept(const at::Tensor& a) const { return a.is_same(scratch) ? a.clone() : a; }
  at::Tensor& into() const { return const_cast<at::Tensor&>(scratch); }

  at::Tensor scratch;
  bool as_libtorch;
};

// On lists: torch's operators that torch.optim uses on accelerators; their bits differ from those of single tensors.
// The length of a list changes no element.
using List = std::vector<at::Tensor>;
struct OnLists {
  void mul_(const List& self, double by) const { at::_foreach_mul_(self, by); }
  void div_(const List& self, const std::vector<at::Scalar>& by) const { at::_foreach_div_(self, by); }
  void add_(const List& self, double term) const { at::_foreach_add_(self, term); }
  void add_(const List& self, const List& term, double alpha) const { at::_foreach_add_(self, term, alpha); }
  void lerp_(const List& self, const List& to, double weight) const { at::_foreach_lerp_(self, to, weight); }
  void addcmul_(const List& self, const List& b, const List& c, double value) const {
    at::_foreach_addcmul_(self, b, c, value);
  }
  template <class Number>
  void addcdiv_(const List& self, const List& b, const List& c, const Number& value) const {
    at::_foreach_addcdiv_(self, b, c, value);
  }
  List scaled(List a, double by, bool is_negated) const {
    if (by != 1) a = at::_foreach_mul(a, by);
    return is_negated ? at::_foreach_neg(a) : a;
  }
  List add(const List& a, double term) const { return at::_foreach_add(a, term); }
  List add(const List& a, const List& b, double alpha) const { return at::_foreach_add(a, b, alpha); }
  List addcmul(const List& a, const List& b, const List& c, double value) const {
    return at::_foreach_addcmul(a, b, c, value);
  }
  List sqrt(const List& a) const { return at::_foreach_sqrt(a); }
  const List& kept(const List& a) const { return a; }
};

// by_lists: there torch takes a number out of a tensor lr, and rounds nothing.
Step stepOf(const Hyper& hyper, double count, bool decays_weight, bool by_lists = false) {
  const double correction1 = 1 - std::pow(hyper.beta1, count), correction2 = 1 - std::pow(hyper.beta2, count);
  Step step{.l2 = decays_weight ? 0 : hyper.weight_decay,
            .shrinkage = decays_weight ? 1 - hyper.lr * hyper.weight_decay : 1,
            .root = hyper.libtorch ? std::sqrt(correction2) : std::pow(correction2, 0.5),
            .rate = -(hyper.lr / correction1)};
  if (!hyper.rounds_rate || by_lists) return step;
  const auto lr = static_cast<float>(hyper.lr);
  const float decayed = lr * static_cast<float>(hyper.weight_decay);
  if (decays_weight) step.shrinkage = 1.0F - decayed;
  step.rate = -(lr / static_cast<float>(correction1));
  return step;
}

// Updates of tensors, lists and floats -------------------------------------------------------------------------------
struct Update {
  OptimizerKind kind;
  unsigned traits;
  Step step;  // only Adam reads it
  Hyper hyper;
};

// on: as UpdateTensors::tensors.
template <class A, class T, class Number>
void compute(const A& a, const Update& with, T* on, const AdamStep<Number>& step) {
  const Hyper& hyper = with.hyper;
  if (with.kind == OptimizerKind::kSgd) return sgd(a, with.traits, on[0], on[1], on[2], hyper);
  if (with.kind == OptimizerKind::kRmsprop) {
    const T gradient = a.kept(gradientOf(a, with.traits, on[0], on[1], hyper.weight_decay, hyper));
    const T root = a.sqrt(rmspropStates(a, with.traits, gradient, on[2], on[3], hyper));
    return rmspropWeight(a, with.traits, on[0], gradient, root, on[4], hyper);
  }
  adamStates(a, with.traits, on[0], on[1], on[2], on[3], step, hyper);
  adamWeight(a, on[0], on[2], a.sqrt(on[3]), step, hyper);
}

void onTensors(const Update& with, const Tensors& tensors) {
  forEachPart(tensors, [&](Tensors part, const at::Tensor& scratch) {
    compute(OnTensors{scratch, with.hyper.libtorch}, with, part.data(), with.step);
  });
}

// Updates of one group and one element type. They differ in Adam's step only.
struct Lists {
  void add(const Update& with, const Tensors& tensors) {
    first = first ? first : with;
    for (std::size_t i = 0; i < tensors.size(); ++i) on.at(i).push_back(tensors[i]);
    step.l2 = with.step.l2;
    step.shrinkage = with.step.shrinkage;
    step.root.emplace_back(with.step.root);
    step.rate.emplace_back(with.step.rate);
  }
  void run() { compute(OnLists(), *first, on.data(), step); }

  std::optional<Update> first;
  std::array<List, 5> on;
  AdamStep<std::vector<at::Scalar>> step;
};

float* pointerTo(const at::Tensor& tensor) { return static_cast<float*>(tensor.data_ptr()); }

void onFloats(const Update& with, const Tensors& tensors) {
  const auto pointersTo = [](const Tensors& part, int64_t begin) {
    std::array<float*, 5> at;
    at.fill(pointerTo(part[1]) + begin);
    for (std::size_t i = 0; i < part.size(); ++i)
      if (part[i].defined()) at.at(i) = pointerTo(part[i]) + begin;
    return at;
  };
  if (with.kind == OptimizerKind::kSgd)
    return shareOut(tensors[0].numel(), kUpdateRange, [&](int64_t begin, int64_t end) {
      fused::sgd(end - begin, pointersTo(tensors, begin).data(), with.traits, with.hyper);
    });
  forEachPart(tensors, [&](const Tensors& part, at::Tensor root) {
    const auto at = pointersTo(part, 0);
    const int64_t count = root.numel();
    if (with.kind == OptimizerKind::kRmsprop) {
      fused::rmspropStates(count, at.data(), pointerTo(root), with.traits, with.hyper);
      ops::sqrt_(root);
      return fused::rmspropWeight(count, at.data(), pointerTo(root), with.traits, with.hyper);
    }
    fused::adamStates(count, at.data(), with.traits, with.step, with.hyper);
    ops::sqrt_out(root, part[3]);
    fused::adamWeight(count, at.data(), pointerTo(root), with.step, with.hyper);
  });
}

// Operands for a trial: different numbers in [0, 1). The mean square of RMSprop is in [1, 2), because it must be larger
// than the square of the mean.
Tensors trialTensors() {
  Tensors tensors;
  uint32_t state = 1;
  for (int64_t i = 0; i < 5; ++i) {
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

// Whether updates of floats round as this LibTorch's kernels do on this processor.
bool floatsAgree() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return false;
#endif
  Hyper hyper;
  hyper.lr = 0.03;
  hyper.momentum = 0.7;
  hyper.dampening = 0.3;
  hyper.weight_decay = 0.11;
  hyper.gradient_scale = 0.3;
  for (const unsigned trait : std::initializer_list<unsigned>{0, kNesterov, kAsLibtorch}) {
    hyper.libtorch = trait == kAsLibtorch;
    hyper.beta1 = hyper.alpha = trait == kNesterov ? 0.9 : 0.2;  // both branches of at::lerp
    for (const auto kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kRmsprop}) {
      const Update update{kind, trait | kDecays | kMomentum | kCentered, stepOf(hyper, 3, false), hyper};
      const Tensors expected = trialTensors(), found = trialTensors();
      onTensors(update, expected);
      onFloats(update, found);
      for (std::size_t i = 0; i < found.size(); ++i)
        if (std::memcmp(expected[i].const_data_ptr(), found[i].const_data_ptr(), found[i].nbytes()) != 0) return false;
    }
  }
  return true;
}

bool canUseFloats(const Tensors& tensors) {
  static const bool agree = floatsAgree();
  return agree && tensors[0].is_cpu() && tensors[0].scalar_type() == at::kFloat && haveOneLayout(tensors);
}

// Updates by torch's fused kernels: calls as torch/optim's, with one tensor in each list -----------------------------
at::Tensor scaled(const at::Tensor& sum, const Hyper& hyper) {
  return hyper.gradient_scale == 1 ? sum : ops::mul(sum, number(hyper.gradient_scale, sum.scalar_type()));
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

void lamb(const Tensors& all, double count, bool corrects_bias, const Hyper& hyper) {
  at::Tensor weight = all[0], average = all[2], square = all[3];
  const auto corrected = [&](const at::Tensor& mean, double beta) {
    return ops::div(mean, number(corrects_bias ? 1 - std::pow(beta, count) : 1, mean.scalar_type()));
  };
  const OnTensors a{at::empty_like(weight), /*as_libtorch=*/false};
  // Its means are those of Adam in C++, but for the rounding of factors.
  adamStates(a, kAsLibtorch, weight, all[1], average, square, Step{}, hyper);
  at::Tensor update = a.sqrt(corrected(square, hyper.beta2));
  a.add_(update, hyper.eps);
  ops::div_out(update, corrected(average, hyper.beta1), update);
  if (hyper.weight_decay != 0) a.add_(update, weight, hyper.weight_decay);
  const double weight_norm = std::min(normOf(weight), hyper.max_weight_norm), update_norm = normOf(update);
  const double trust = weight_norm == 0 || update_norm == 0 ? 1 : weight_norm / update_norm;
  a.add_(weight, update, -(hyper.lr * trust));
}

// For complex parameters, torch scales, negates and decays the gradient before it splits real and imaginary parts. This
// does the same. decay: of the gradient.
void splitComplex(Tensors& tensors, double decay, Hyper& hyper) {
  if (!tensors[0].is_complex()) return;
  const OnTensors a{at::empty_like(tensors[0]), hyper.libtorch};
  tensors[1] = gradientOf(a, decay != 0 ? kDecays : 0U, tensors[0], tensors[1], decay, hyper);
  hyper.gradient_scale = 1;
  hyper.maximize = false;
  if (decay != 0) hyper.weight_decay = 0;
  for (at::Tensor& tensor : tensors) tensor = asReal(tensor);
}

// Returns whether this is the first update with momentum.
bool countSgd(at::Tensor& velocity, const at::Tensor& step, Hyper& hyper) {
  bool is_first = false;
  if (step.defined()) {
    float& count = *step.mutable_data_ptr<float>();
    is_first = count == 0;
    if (is_first || hyper.momentum == 0) hyper.dampening = 0;
    if (hyper.momentum == 0)
      velocity = at::Tensor();
    else
      count += 1;
  }
  ABELE_REQUIRE(velocity.defined() || hyper.momentum == 0, E0706,
                {.what = cat("momentum ", hyper.momentum, " for a parameter that was compiled without momentum"),
                 .remedy = "give the optimizer its momentum before the model is compiled"});
  return is_first;
}

}  // namespace

bool setNumber(std::vector<Hyper>& hypers, int group, const std::string& name, double value) {
  if (group < 0 || static_cast<std::size_t>(group) >= hypers.size()) return false;
  Hyper& hyper = hypers[static_cast<std::size_t>(group)];
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
    throwUser(ErrorCode::E0706, {.what = cat("hyper-parameter ", name, " is not one of the device's optimizers")});
  return true;
}

void update(OptimizerKind kind, bool flag, const std::vector<UpdateTensors>& all, const Hyper& given_hyper) {
  const bool is_sgd = kind == OptimizerKind::kSgd, is_adamw = kind == OptimizerKind::kAdamW;
  const bool is_adam = is_adamw || kind == OptimizerKind::kAdam, is_rmsprop = kind == OptimizerKind::kRmsprop;
  std::map<std::pair<c10::ScalarType, bool>, Lists> lists;  // by element type, as in torch, and whether it was complex
  std::vector<InOneType> computed;
  for (const UpdateTensors& one : all) {
    Hyper hyper = given_hyper;
    Tensors given = one.tensors;
    const bool is_first = is_sgd && countSgd(given[2], one.step, hyper);
    const double count = is_sgd || !one.step.defined() ? 0 : *one.step.mutable_data_ptr<float>() += 1;
    if (is_adam || is_rmsprop) splitComplex(given, is_adamw ? 0 : hyper.weight_decay, hyper);
    const Tensors& tensors = computed.emplace_back(std::move(given)).tensors();
    // torch has no other implementation of TensorFlow's variant.
    const bool by_lists = !tensors[0].is_cpu() && !hyper.libtorch && !(is_rmsprop && flag);
    const Step step = is_adam ? stepOf(hyper, count, is_adamw, by_lists) : Step{};
    const auto bit = [](bool has, UpdateTrait trait) { return has ? trait : 0U; };
    const unsigned traits = bit((is_adam ? step.l2 : hyper.weight_decay) != 0, kDecays) |
                            bit(hyper.libtorch, kAsLibtorch) | bit(is_adam && step.shrinkage != 1, kShrinks) |
                            bit(tensors[is_rmsprop ? 4 : 2].defined(), kMomentum) |
                            bit(is_sgd && hyper.nesterov, kNesterov) |
                            bit(is_rmsprop && tensors[3].defined(), kCentered) | bit(is_rmsprop && flag, kTf);
    const Update update{kind, traits, step, hyper};
    if (kind == OptimizerKind::kLamb)
      lamb(tensors, count, /*corrects_bias=*/flag, hyper);
    else if (hyper.fused && is_sgd)
      sgdByTorch(tensors, is_first, hyper);
    else if (hyper.fused && is_adam)
      adamByTorch(tensors, one.step, is_adamw, hyper);
    else if (by_lists)
      lists[{tensors[0].scalar_type(), one.tensors[0].is_complex()}].add(update, tensors);
    else
      canUseFloats(tensors) ? onFloats(update, tensors) : onTensors(update, tensors);
  }
  for (auto& [type, list] : lists) list.run();
  for (const InOneType& tensors : computed) tensors.store();
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

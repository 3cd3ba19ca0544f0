#include "capture/autograd_bridge.h"

#include <algorithm>
#include <limits>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/Type.h>
#include <c10/util/flat_hash_map.h>
#include <c10/util/hash.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include "base/cat.h"

namespace abele::capture {

Functions functionsOf(const at::Tensor& loss) {
  Functions found, pending{loss.grad_fn().get()};
  ska::flat_hash_set<torch::autograd::Node*> seen(pending.begin(), pending.end());
  while (!pending.empty()) {
    torch::autograd::Node* node = pending.back();
    pending.pop_back();
    if (node == nullptr) continue;
    found.push_back(node);
    for (const torch::autograd::Edge& edge : node->next_edges())
      if (seen.insert(edge.function.get()).second) pending.push_back(edge.function.get());
  }
  return found;
}

namespace {

/// Whether this function may call backward() in its own backward. Functions of programs may (torch.autograd.Function;
/// reversible layers and torch.utils.checkpoint's reentrant form do); those of torch's operators do not.
bool mayCallBackward(const torch::autograd::Node& node) {
  const std::string type = c10::demangle(typeid(node).name());
  if (!type.starts_with("torch::autograd::PyNode") && !type.starts_with("torch::autograd::CppNode")) return false;
  return !node.name().starts_with("_NoopSaveInputs");  // torch.utils.checkpoint without reentry
}

/// Whether backward of the loss may leave gradients in .grad, which autograd::grad does not return.
bool leavesGradients(const at::Tensor& loss) {
  return std::ranges::any_of(functionsOf(loss),
                             [](const torch::autograd::Node* node) { return mayCallBackward(*node); });
}

/// Takes what has been added to .grad out of it, so that the next gradient comes by itself.
struct TakeGradient final : torch::autograd::PostAccumulateGradHook {
  explicit TakeGradient(std::vector<at::Tensor>* to) : taken(*to) {}
  void operator()(const at::Tensor& parameter) override {
    taken.push_back(std::exchange(parameter.mutable_grad(), at::Tensor()));
  }
  std::vector<at::Tensor>& taken;
};

/// Runs backward() and returns the gradients that it adds to .grad. Puts back the .grad of before, also when it throws.
std::vector<std::vector<at::Tensor>> accumulated(const at::Tensor& loss, const at::Tensor& loss_gradient,
                                                 const std::vector<at::Tensor>& parameters) {
  std::vector<std::vector<at::Tensor>> gradients(parameters.size());
  std::vector<at::Tensor> grads;
  std::vector<std::unique_ptr<torch::autograd::PostAccumulateGradHook>> hooks;  // they are never called
  const auto put_back = c10::make_scope_exit([&] {
    for (size_t i = 0; i < hooks.size(); ++i) {
      parameters[i].mutable_grad() = grads[i];
      torch::autograd::impl::post_acc_grad_hooks(parameters[i]) = std::move(hooks[i]);
    }
  });
  for (size_t i = 0; i < parameters.size(); ++i) {
    grads.push_back(std::exchange(parameters[i].mutable_grad(), at::Tensor()));
    hooks.push_back(std::exchange(torch::autograd::impl::post_acc_grad_hooks(parameters[i]),
                                  std::make_unique<TakeGradient>(&gradients[i])));
  }
  torch::autograd::backward({loss}, {loss_gradient}, /*retain_graph=*/false, /*create_graph=*/false);
  return gradients;
}

/// Images of a loss among autograd's functions.
class LossImages {
 public:
  /// is_single: the loss has one element.
  LossImages(const torch::autograd::Node* loss, bool is_single) : is_single_(is_single) {
    found_[loss] = LossImage::kSame;
  }

  LossImage of(const torch::autograd::Node* node) {
    const auto [place, is_new] = found_.emplace(node, LossImage::kOther);
    if (!is_new) return place->second;
    const LossImage image = imageOf(*node);
    return found_[node] = image;
  }

 private:
  /// Whether this is the function of one of these operators. Names are like "AddBackward0".
  static bool isOneOf(const std::string& name, std::initializer_list<const char*> operators) {
    return std::ranges::any_of(operators, [&](const char* each) { return name.starts_with(cat(each, "Backward")); });
  }

  LossImage imageOf(const torch::autograd::Node& node) {
    const std::string name = node.name();
    const bool adds = isOneOf(name, {"Add", "Sub", "Rsub"});
    // Training starts with a one for each element of the loss, which is the gradient of their sum.
    const bool scales = isOneOf(name, {"Mul", "Div", "Neg"}) || (!is_single_ && isOneOf(name, {"Mean"}));
    if (!adds && !scales &&
        !isOneOf(name, {"Clone", "ToCopy", "View", "ReshapeAlias", "UnsafeView", "Squeeze", "Unsqueeze", "Expand",
                        "Alias", "Mean", "Sum"}))
      return LossImage::kOther;
    LossImage image = LossImage::kOther;
    int images = 0, others = 0;
    for (const torch::autograd::Edge& edge : node.next_edges()) {
      if (!edge.function) continue;  // no gradient: a constant
      const LossImage operand = of(edge.function.get());
      ++(operand == LossImage::kOther ? others : images);
      image = std::max(image, operand);
    }
    if (images == 0) return LossImage::kOther;
    if (adds && others > 0) return LossImage::kWithTerm;
    return scales || images > 1 ? std::max(image, LossImage::kMultiple) : image;
  }

  bool is_single_;
  std::unordered_map<const torch::autograd::Node*, LossImage> found_;
};

/// Hooks of parameters that have none of the program's own: torch does not say which of two kinds of hooks it calls
/// last, and what a later one makes would be the gradient.
class CompletionHooks {
 public:
  CompletionHooks(const std::vector<at::Tensor>& parameters, const Completed& complete) {
    if (!complete) return;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto* autograd = torch::autograd::impl::get_autograd_meta(parameters[i]);
      if (autograd == nullptr || !autograd->hooks_.empty()) continue;
      parameters[i].register_hook([i, &complete](const at::Tensor& gradient) -> at::Tensor {
        return gradient.defined() ? complete(i, gradient) : gradient;
      });
      hooked_.push_back(parameters[i]);
    }
  }
  ~CompletionHooks() {
    for (const at::Tensor& parameter : hooked_) {
      torch::autograd::AutogradMeta* autograd = torch::autograd::impl::get_autograd_meta(parameter);
      parameter.remove_hook(0);
      if (autograd->hooks_.size() > 1) continue;  // backward has added others
      torch::autograd::impl::clear_hooks(parameter);
      autograd->cpp_hooks_list_ = nullptr;
    }
  }
  CompletionHooks(const CompletionHooks&) = delete;
  CompletionHooks& operator=(const CompletionHooks&) = delete;

 private:
  std::vector<at::Tensor> hooked_;
};

/// Whether the function, of this type, belongs to an operator of torch, and calls no code of the program.
bool isTorchs(torch::autograd::Node& node, const std::string& type) {
  return (type.starts_with("torch::autograd::generated::") || type == "torch::autograd::AccumulateGrad") &&
         node.pre_hooks().empty() && node.tensor_pre_hooks().empty() && node.retains_grad_hooks().empty() &&
         node.post_hooks().empty();
}

}  // namespace

std::optional<uint64_t> hashOf(const Functions& functions, const std::vector<at::Tensor>& parameters) {
  std::unordered_map<const c10::TensorImpl*, uint64_t> number_of_parameter;
  for (const at::Tensor& parameter : parameters)
    number_of_parameter.emplace(parameter.unsafeGetTensorImpl(), number_of_parameter.size() + 1);
  ska::flat_hash_map<const torch::autograd::Node*, uint64_t> number_of;
  for (const torch::autograd::Node* function : functions) number_of.emplace(function, number_of.size() + 1);
  uint64_t hash = 0;
  const auto add = [&hash](uint64_t value) { hash = c10::hash_combine(hash, value); };
  for (torch::autograd::Node* function : functions) {
    const std::string type = c10::demangle(typeid(*function).name());
    if (!isTorchs(*function, type)) return std::nullopt;
    add(std::hash<std::string>()(type));
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(function)) {
      const auto parameter = number_of_parameter.find(leaf->variable.unsafeGetTensorImpl());
      add(parameter == number_of_parameter.end() ? 0 : parameter->second);
    }
    for (const torch::autograd::Edge& edge : function->next_edges()) {
      add(edge.function ? number_of.at(edge.function.get()) : 0);
      add(edge.input_nr);
    }
  }
  return hash;
}

std::vector<std::vector<at::Tensor>> gradients(const at::Tensor& loss, const at::Tensor& loss_gradient,
                                               const std::vector<at::Tensor>& parameters, const Completed& complete) {
  if (leavesGradients(loss)) return accumulated(loss, loss_gradient, parameters);
  const CompletionHooks hooks(parameters, complete);
  std::vector<std::vector<at::Tensor>> found;
  for (const at::Tensor& gradient :
       torch::autograd::grad({loss}, parameters, {loss_gradient}, /*retain_graph=*/false, /*create_graph=*/false,
                             /*allow_unused=*/true))
    found.push_back(gradient.defined() ? std::vector{gradient} : std::vector<at::Tensor>());
  return found;
}

LossImage imageOfLoss(const at::Tensor& result, const at::Tensor& loss) {
  if (!result.defined() || !result.grad_fn() || !loss.grad_fn()) return LossImage::kOther;
  return LossImages(loss.grad_fn().get(), loss.numel() == 1).of(result.grad_fn().get());
}

bool isFunctionOf(const at::Tensor& result, const at::Tensor& loss) {
  if (!result.defined() || !result.grad_fn() || !loss.grad_fn()) return false;
  if (result.grad_fn()->name().starts_with("ExpBackward")) return false;
  return std::ranges::any_of(functionsOf(result),
                             [&](const torch::autograd::Node* each) { return each == loss.grad_fn().get(); });
}

bool hasAccumulationHooks(const at::Tensor& parameter) {
  if (torch::autograd::impl::post_acc_grad_hooks(parameter)) return true;
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  return accumulator && (!accumulator->pre_hooks().empty() || !accumulator->post_hooks().empty());
}

std::vector<at::Tensor> leavesOf(const Functions& functions) {
  std::vector<at::Tensor> leaves;
  for (torch::autograd::Node* node : functions)
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) leaves.push_back(leaf->variable);
  return leaves;
}

void freeSaved(const at::Tensor& result, uint64_t first) {
  if (!result.defined() || !result.grad_fn()) return;
  const uint64_t thread = at::RecordFunction::currentThreadId();
  for (torch::autograd::Node* node : functionsOf(result))
    if (node->thread_id() == thread && node->sequence_nr() >= first) node->release_variables();
}

std::string currentFunctionName() {
  const auto node = torch::autograd::get_current_node();
  return node ? node->name() : std::string();
}

int64_t currentFunctionSequence() {
  const auto node = torch::autograd::get_current_node();
  // Gradient accumulators carry the largest number and belong to no operator of forward.
  if (!node || node->sequence_nr() >= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return -1;
  return static_cast<int64_t>(node->sequence_nr());
}

}  // namespace abele::capture

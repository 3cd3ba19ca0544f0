// The only unit that includes torch's autograd headers. Used by capture.cc and attribution.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::autograd {
struct Node;
}  // namespace torch::autograd

namespace abele::capture {

/// Called with a parameter's index and its complete gradient, before the next gradients are computed. Returns: a tensor
/// of the same type and sizes that replaces the gradient from then on.
using Completed = std::function<at::Tensor(size_t parameter, const at::Tensor& gradient)>;
/// Runs backward of the loss. Returns the gradients that it adds to the .grad of each parameter, in their order: none
/// if the loss does not depend on the parameter, and several if the program's own backward calls backward()
/// (torch.utils.checkpoint's reentrant form) and forward uses the parameter twice. Frees the autograd graph. complete:
/// may be empty. Not called if the program has autograd functions of its own, and not for parameters with hooks.
std::vector<std::vector<at::Tensor>> gradients(const at::Tensor& loss, const at::Tensor& loss_gradient,
                                               const std::vector<at::Tensor>& parameters,
                                               const Completed& complete = {});

/// All functions that backward of the loss may run; they live as long as the loss.
using Functions = std::vector<torch::autograd::Node*>;
Functions functionsOf(const at::Tensor& loss);

/// A hash of functions, of their order and of the parameters that they end in. Returns nothing if functions of the
/// program are among them, or hooks.
std::optional<uint64_t> hashOf(const Functions& functions, const std::vector<at::Tensor>& parameters);

/// How a value that forward returns is computed from the loss by differentiable operators: it is the loss (kSame), a
/// multiple of it, the loss plus a term with a gradient of its own (kWithTerm), or none of these (kOther).
enum class LossImage : uint8_t { kOther, kSame, kMultiple, kWithTerm };
LossImage imageOfLoss(const at::Tensor& result, const at::Tensor& loss);
/// Whether differentiable operators of any kind compute the result from the loss. False if the last operator is exp: a
/// perplexity, which programs report and do not train on.
bool isFunctionOf(const at::Tensor& result, const at::Tensor& loss);

/// Whether torch calls hooks after it has added a gradient to parameter.grad. Requires: requires_grad.
bool hasAccumulationHooks(const at::Tensor& parameter);

/// The leaf tensors that functions of backward end in: those that an optimizer could train.
std::vector<at::Tensor> leavesOf(const Functions& functions);

/// Frees the tensors that the autograd functions of the result keep for backward, if these functions are this thread's
/// and their sequence number is at least `first`.
void freeSaved(const at::Tensor& result, uint64_t first);

/// Sequence number of the autograd function that runs now on this thread; -1 outside of one.
int64_t currentFunctionSequence();
/// The name of this function, such as "MulBackward0"; "" outside of one.
std::string currentFunctionName();

}  // namespace abele::capture

// The only unit that includes torch's autograd headers. Used by capture.cc and attribution.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace abele::capture {

/// Told of a parameter's gradient, by the parameter's index, when nothing is added to it any more and before others are
/// computed. Returns: what stands for it from then on, of its type and sizes.
using Completed = std::function<at::Tensor(size_t parameter, const at::Tensor& gradient)>;
/// Runs backward of the loss. Returns the gradients that it adds to the .grad of each parameter, in their order: none
/// if the loss does not depend on the parameter, and several if the program's own backward calls backward()
/// (torch.utils.checkpoint's reentrant form) and forward uses the parameter twice. Frees the autograd graph. complete:
/// may be empty; not told where the program has functions of its own, nor of parameters with hooks.
std::vector<std::vector<at::Tensor>> gradients(const at::Tensor& loss, const at::Tensor& loss_gradient,
                                               const std::vector<at::Tensor>& parameters,
                                               const Completed& complete = {});

/// What a value that forward returns is to the loss, by the differentiable operators between them: nothing or something
/// that is no sum (kOther), the loss itself, a multiple of it, or the loss plus a term with a gradient of its own.
enum class LossImage : uint8_t { kOther, kSame, kMultiple, kWithTerm };
LossImage imageOfLoss(const at::Tensor& result, const at::Tensor& loss);
/// Is the loss among what the result was made of, by differentiable operators of any kind? Not where the last one is
/// exp: that is a perplexity, which programs look at and do not train on.
bool isFunctionOf(const at::Tensor& result, const at::Tensor& loss);

/// Are there functions that torch calls when it has added a gradient to parameter.grad? Requires: requires_grad.
bool hasAccumulationHooks(const at::Tensor& parameter);

/// The tensors that require a gradient and that the loss is made of: those that an optimizer could train.
std::vector<at::Tensor> leavesOf(const at::Tensor& loss);

/// The result was made by autograd functions. Frees what they keep for backward, if they are this thread's and have
/// this sequence number or a later one.
void freeSaved(const at::Tensor& result, uint64_t first);

/// Sequence number of the autograd function that runs now on this thread; -1 outside of one.
int64_t currentFunctionSequence();
/// Its name, as "MulBackward0"; "" outside of one.
std::string currentFunctionName();

}  // namespace abele::capture

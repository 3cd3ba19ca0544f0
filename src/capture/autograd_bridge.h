// The only unit that includes torch's autograd headers. Used by capture.cc and recorder.cc.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace abele::capture {

/// d(loss)/d(parameters), undefined where the loss does not depend on one. Frees the autograd graph.
std::vector<at::Tensor> gradients(const at::Tensor& loss, const at::Tensor& loss_gradient,
                                  const std::vector<at::Tensor>& parameters);

/// Sequence number of the autograd function that runs now on this thread; -1 outside of one.
int64_t currentFunctionSequence();

}  // namespace abele::capture

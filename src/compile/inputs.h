// Checks a model and a batch against the options before anything runs.
#pragma once

#include <vector>

#include "capture/capture.h"
#include "compile/program_options.h"

namespace abele::compile {

/// Throws E0702 for names in updatable_buffers that are not buffers of the model.
void requireBuffers(const ProgramOptions& options, const std::vector<capture::ModelTensor>& model);
/// Throws E0703 if dim 0 of an input cannot be split into the micro-batches of a call.
void checkBatchSplit(const ProgramOptions& options, const std::vector<at::Tensor>& inputs);
/// The rows of the first `count` of `of` micro-batches. They are slices of the inputs, so they have the strides that
/// eager PyTorch sees.
std::vector<at::Tensor> firstMicroBatches(const std::vector<at::Tensor>& inputs, int64_t count, int64_t of);

}  // namespace abele::compile

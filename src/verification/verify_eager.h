// The eager run of verify: plain forward and backward, and objects that restore the state. Used by verify.cc.
#pragma once

#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/at_end.h"
#include "verification/verify.h"

namespace abele::verification {

/// Until the returned object ends, parameters have no gradients. Then restores the contents and versions of the model's
/// tensors, so that no change remains.
AtEnd restoreModel(const std::vector<capture::ModelTensor>& model);
/// When the returned object ends, restores the program's own generators to their present state. Requires: the streams
/// outlive it.
AtEnd restoreGenerators(const std::vector<capture::OwnStream>& streams);
/// Until the returned object ends, eager uses the number of threads of a device, and draws the devices' random numbers.
AtEnd useThreadsAndRandom(int threads, const compile::ProgramOptions& options);
/// Until the returned object ends, records fingerprints of all results of operators on this thread. Null: does nothing.
AtEnd observeResults(std::unordered_set<uint64_t>* seen);

struct PlainStep {
  std::vector<at::Tensor> results;  // detached from autograd
  /// Gradients by tensor of the model, in the order in which they are added up; empty: the loss is not a result of
  /// forward.
  std::vector<std::vector<at::Tensor>> gradients;
};
/// Runs forward, and in training backward, as a program without Abele does. device: the model's device.
PlainStep runPlainly(const VerifyRequest& request, const ir::Graph& captured, const std::vector<at::Tensor>& arguments,
                     double loss_gradient, c10::Device device);

/// The gradients for the optimizer, without loss scaling.
std::vector<at::Tensor> unscaledGradients(const std::vector<at::Tensor>& sums, const compile::OptimizerSpec& optimizer);

}  // namespace abele::verification

// The eager side of verify: plain forward and backward, and objects that restore the state. Used by verify.cc.
#pragma once

#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/at_end.h"
#include "verification/verify.h"

namespace abele::verification {

/// Restores the contents and versions of the model's tensors at the end, so that their changes stay invisible.
/// Meanwhile parameters have no gradients.
AtEnd restoreModel(const std::vector<capture::ModelTensor>& model);
/// Restores the program's own generators to their present state at the end. The streams outlive it.
AtEnd restoreGenerators(const std::vector<capture::OwnStream>& streams);
/// Until the end, eager uses the number of threads of a device, and draws the devices' random numbers.
AtEnd useThreadsAndRandom(int threads, const compile::ProgramOptions& options);
/// Until the end, records fingerprints of all results of operators on this thread. Null: does nothing.
AtEnd observeResults(std::unordered_set<uint64_t>* seen);

struct PlainStep {
  std::vector<at::Tensor> results;  // detached from autograd
  /// By tensor of the model, in the order in which they are added up; empty: the loss is not a result of forward.
  std::vector<std::vector<at::Tensor>> gradients;
};
/// Runs forward, and in training backward, as a program without Abele does. device: the model's device.
PlainStep runPlainly(const VerifyRequest& request, const ir::Graph& captured, const std::vector<at::Tensor>& arguments,
                     double loss_gradient, c10::Device device);

/// The gradients that the optimizer sees, without loss scaling.
std::vector<at::Tensor> unscaledGradients(const std::vector<at::Tensor>& sums, const compile::OptimizerSpec& optimizer);

}  // namespace abele::verification

// The eager side of verify: plain forward and backward, and objects that restore the state. Used by verify.cc.
#pragma once

#include <memory>
#include <unordered_set>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "verification/verify.h"

namespace abele::verification {

/// Restores the contents and versions of the model's tensors, so that their changes stay invisible. Meanwhile
/// parameters have no gradients.
class RestoredModel {
 public:
  explicit RestoredModel(const std::vector<capture::ModelTensor>& model);
  ~RestoredModel();
  RestoredModel(const RestoredModel&) = delete;
  RestoredModel& operator=(const RestoredModel&) = delete;

 private:
  struct Saved {
    at::Tensor tensor, copy, gradient;
    int64_t version = 0;
  };
  std::vector<Saved> saved_;
};

/// Restores the program's own generators to their present state. The streams outlive it.
class RestoredGenerators {
 public:
  explicit RestoredGenerators(const std::vector<capture::OwnStream>& streams);
  ~RestoredGenerators();
  RestoredGenerators(const RestoredGenerators&) = delete;
  RestoredGenerators& operator=(const RestoredGenerators&) = delete;

 private:
  const std::vector<capture::OwnStream>& streams_;
  std::vector<at::Tensor> states_;
};

/// While it lives, eager uses the number of threads of a device, and draws the devices' random numbers.
class ThreadsAndRandom {
 public:
  ThreadsAndRandom(int threads, const compile::ProgramOptions& options);
  ~ThreadsAndRandom();
  ThreadsAndRandom(const ThreadsAndRandom&) = delete;
  ThreadsAndRandom& operator=(const ThreadsAndRandom&) = delete;

 private:
  int threads_;
  at::Generator generator_;  // the default generator of eager's device
  at::Tensor random_;
};

/// Records fingerprints of all results of operators on this thread while it lives.
class Observer {
 public:
  explicit Observer(bool is_on);
  ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;
  std::unordered_set<uint64_t> take() { return std::move(*seen_); }

 private:
  std::unique_ptr<std::unordered_set<uint64_t>> seen_;
  uint64_t handle_ = 0;
};

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

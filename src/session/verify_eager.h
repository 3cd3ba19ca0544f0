// The eager side of verify: plain forward and backward, and what puts everything back. Used by verify.cc.
#pragma once

#include <memory>
#include <unordered_set>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "session/verify.h"

namespace abele::host {

/// Puts the contents of the model's tensors back, so that nobody sees that they were changed: versions too. Meanwhile
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

/// Puts the program's own generators back to where they stand now. The streams outlive it.
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

/// While it lives, eager has as many threads as a device and draws the devices' random numbers, where it runs.
class ThreadsAndRandom {
 public:
  ThreadsAndRandom(int threads, const ProgramOptions& options);
  ~ThreadsAndRandom();
  ThreadsAndRandom(const ThreadsAndRandom&) = delete;
  ThreadsAndRandom& operator=(const ThreadsAndRandom&) = delete;

 private:
  int threads_;
  at::Generator generator_;  // the default one of eager's device
  at::Tensor random_;
};

/// Fingerprints of all that operators return on this thread while it lives.
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
  std::vector<at::Tensor> results;    // detached
  std::vector<at::Tensor> gradients;  // by tensor of the model; empty: the loss is no result of forward
};
/// Forward, and in training the gradients, as a program without Abele computes them. device: where the model is.
PlainStep runPlainly(const VerifyRequest& request, const ir::Graph& captured, const std::vector<at::Tensor>& arguments,
                     double loss_gradient, c10::Device device);

/// The gradients that the optimizer sees: without loss scaling.
std::vector<at::Tensor> unscaledGradients(const std::vector<at::Tensor>& sums, const OptimizerSpec& optimizer);

}  // namespace abele::host

// Captures a torch::nn program, replays it on other inputs and compares with eager, bit for bit.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "../../support/replay.h"
#include "base/error.h"
#include "capture/annotate.h"
#include "capture/capture.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "kernels/operator_forms.h"

namespace abele::capture {

inline const bool kHasForms = [] {  // which a compilation registers
  kernels::registerMathBitsOperators();
  return true;
}();

using Tensors = std::vector<at::Tensor>;
using Forward = std::function<Tensors(Tensors)>;
using ByName = std::map<std::string, at::Tensor>;

inline bool sameBits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.dtype() != b.dtype()) return false;
  const at::Tensor x = a.detach().contiguous();
  const at::Tensor y = b.detach().contiguous();
  return std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

inline void expectSame(const ByName& expected, const ByName& actual, const char* what) {
  for (const auto& [name, tensor] : expected) {
    auto found = actual.find(name);
    ASSERT_NE(found, actual.end()) << what << " of " << name << " is missing";
    EXPECT_TRUE(sameBits(tensor, found->second)) << what << " of " << name << " differs";
  }
  EXPECT_EQ(expected.size(), actual.size()) << what;
}

/// The tensors of a module, tied ones once.
struct Tensorised {
  std::map<std::string, at::Tensor> owned;
  std::vector<ModelTensor> model;

  explicit Tensorised(const std::shared_ptr<torch::nn::Module>& module) {
    if (!module) return;
    for (auto& item : module->named_parameters()) add(item.key(), item.value(), true);
    for (auto& item : module->named_buffers()) add(item.key(), item.value(), false);
  }
  void add(const std::string& name, const at::Tensor& tensor, bool is_parameter) {
    for (auto& [other, t] : owned)
      if (t.is_same(tensor)) return;
    auto it = owned.emplace(name, tensor).first;
    model.push_back({name, &it->second, is_parameter});
  }
  ByName contents() const {
    ByName copies;
    for (const auto& [name, tensor] : owned) copies[name] = tensor.detach().clone();
    return copies;
  }
};

/// A copy with the same strides, gaps included, because the capture keeps them and kernels depend on them.
inline at::Tensor copyWithStrides(const at::Tensor& tensor) {
  int64_t extent = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) extent += (tensor.size(d) - 1) * tensor.stride(d);
  return tensor.as_strided({extent}, {1}).clone().as_strided(tensor.sizes(), tensor.strides());
}

struct Eager {
  Tensors results;
  at::Tensor loss;
  ByName gradients, updates;
};

/// In training the first result is the loss. Restores the module's tensors afterwards.
inline Eager runEager(Tensorised& tensors, const Forward& forward, Tensors inputs, bool training,
                      double loss_gradient) {
  const ByName before = tensors.contents();
  Eager eager;
  for (at::Tensor& input : inputs) input = copyWithStrides(input);
  const c10::AutoGradMode grad(training);
  eager.results = forward(inputs);
  for (at::Tensor& result : eager.results) result = result.clone();
  if (training) {
    eager.loss = eager.results[0].detach();
    Tensors parameters;
    std::vector<std::string> names;
    for (const ModelTensor& m : tensors.model)
      if (m.is_parameter && m.tensor->requires_grad()) parameters.push_back(*m.tensor), names.push_back(m.name);
    if (!parameters.empty()) {
      auto grads = torch::autograd::grad({eager.results[0]}, parameters,
                                         {at::full_like(eager.results[0], loss_gradient)}, c10::nullopt, false, true);
      for (size_t i = 0; i < grads.size(); ++i)
        if (grads[i].defined()) eager.gradients[names[i]] = grads[i].clone();
    }
  }
  for (at::Tensor& result : eager.results) result = result.detach();
  const c10::AutoGradMode no_grad(false);
  for (auto& [name, tensor] : tensors.owned) {
    if (sameBits(before.at(name), tensor)) continue;
    eager.updates[name] = tensor.detach().clone();
    tensor.detach().copy_(before.at(name));
  }
  return eager;
}

inline at::Generator seeded(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

inline test::ReplayResult replay(const Recording& recording, const Tensorised& tensors, const Tensors& inputs,
                                 uint64_t seed) {
  Tensors externals = recording.constants;
  for (size_t i = 0; i < externals.size(); ++i) {
    const ir::External& external = recording.graph.externals[i];
    if (external.kind != ir::InputKind::kConstant) externals[i] = tensors.owned.at(external.name);
  }
  return test::Replayer(recording.graph, externals, seeded(seed)).run(inputs);
}

/// Captures on the first inputs. Results, loss, gradients and updates must equal eager's on both sets of inputs, and
/// the model must not change.
inline Recording expectCaptured(const std::shared_ptr<torch::nn::Module>& module, const Forward& forward,
                                const Tensors& first, const Tensors& second, bool training = true) {
  Tensorised tensors(module);
  const ByName before = tensors.contents();
  at::Generator generator = seeded(11);
  Request request;
  request.forward = [&](Tensors inputs) {
    Tensors results = forward(std::move(inputs));
    if (training) markLoss(results[0]);
    return results;
  };
  request.arguments = first;
  request.model = tensors.model;
  request.training = training;
  request.loss_gradient = 0.25;
  request.generator = &generator;
  const at::Tensor random_before = at::detail::getDefaultCPUGenerator().get_state();
  Recording recording = capture(request);
  EXPECT_TRUE(sameBits(random_before, at::detail::getDefaultCPUGenerator().get_state()));
  expectSame(before, tensors.contents(), "model tensor after capture");

  SCOPED_TRACE(ir::print(recording.graph));
  for (const std::string& finding : ir::verify(recording.graph, ir::Form::kCaptured)) ADD_FAILURE() << finding;
  for (const Tensors* inputs : {&first, &second}) {
    const uint64_t seed = inputs == &first ? 11 : 12;
    torch::manual_seed(seed);
    const Eager eager = runEager(tensors, forward, *inputs, training, 0.25);
    const test::ReplayResult replayed = replay(recording, tensors, *inputs, seed);
    EXPECT_EQ(eager.results.size(), replayed.results.size());
    for (size_t i = 0; i < std::min(eager.results.size(), replayed.results.size()); ++i) {
      EXPECT_TRUE(sameBits(eager.results[i], replayed.results[i])) << "result " << i;
      if (inputs == &first) {
        EXPECT_TRUE(sameBits(eager.results[i], recording.results.at(i))) << "captured result " << i;
      }
    }
    if (training) {
      EXPECT_TRUE(sameBits(eager.loss, replayed.loss));
    }
    expectSame(eager.gradients, replayed.gradients, "gradient");
    for (const auto& [name, tensor] : eager.updates) {
      auto found = replayed.updates.find(name);
      if (found == replayed.updates.end()) {
        ADD_FAILURE() << "no update of " << name;
        continue;
      }
      EXPECT_TRUE(sameBits(tensor, found->second)) << "update of " << name;
    }
  }
  return recording;
}

inline size_t count(const ir::Graph& graph, const std::string& op) {
  size_t n = 0;
  for (const ir::Node& node : graph.nodes) n += node.op == op;
  return n;
}

}  // namespace abele::capture

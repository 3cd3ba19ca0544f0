#include "verification/verify_eager.h"

#include <memory>
#include <utility>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/full_like.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "capture/autograd_bridge.h"
#include "capture/random_stream.h"
#include "session/impl.h"

namespace abele::verification {
namespace {

thread_local std::unordered_set<uint64_t>* observed = nullptr;

void noteResults(const at::RecordFunction& function, at::ObserverContext*) {
  std::unordered_set<uint64_t>* into = std::exchange(observed, nullptr);  // ignores the operators of fingerprint()
  if (!into) return;
  for (const at::IValue& value : function.outputs()) {
    const auto note = [&](const at::Tensor& tensor) {
      if (tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage())
        into->insert(fingerprint(tensor));
    };
    if (value.isTensor()) note(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector()) note(tensor);
  }
  observed = into;
}

/// Index of the flattened result that is the loss; -1 if no result is.
int64_t lossResult(const ir::Graph& captured) {
  ir::ValueId loss = ir::kNone;
  for (const ir::Output& output : captured.outputs)
    if (output.kind == ir::OutputKind::kLoss) loss = output.value;
  for (const ir::Output& output : captured.outputs)
    if (output.kind == ir::OutputKind::kResult && loss != ir::kNone && output.value == loss) return output.target;
  return -1;
}

bool isTrained(const at::Tensor& tensor) { return tensor.requires_grad() && tensor.is_leaf(); }

struct Saved {
  at::Tensor tensor, copy, gradient;
  int64_t version = 0;
};

}  // namespace

AtEnd restoreModel(const std::vector<capture::ModelTensor>& model) {
  const c10::AutoGradMode no_grad(false);
  std::vector<Saved> all;
  for (const capture::ModelTensor& each : model) {
    if (!each.tensor->defined() || !each.tensor->has_storage()) continue;
    const c10::VariableVersion& counter = each.tensor->unsafeGetTensorImpl()->version_counter();
    all.push_back({*each.tensor, each.tensor->detach().clone(), {}, counter.enabled() ? counter.current_version() : 0});
    if (isTrained(*each.tensor)) all.back().gradient = std::exchange(each.tensor->mutable_grad(), at::Tensor());
  }
  return AtEnd([all = std::move(all)] {
    const c10::AutoGradMode no_grad(false);
    for (const Saved& saved : all) {
      if (!isSame(saved.tensor, saved.copy)) saved.tensor.detach().copy_(saved.copy);
      c10::VariableVersion counter = saved.tensor.unsafeGetTensorImpl()->version_counter();  // shared with the tensor
      if (counter.enabled()) counter.set_version(saved.version);
      if (isTrained(saved.tensor)) saved.tensor.mutable_grad() = saved.gradient;
    }
  });
}

AtEnd restoreGenerators(const std::vector<capture::OwnStream>& streams) {
  std::vector<at::Tensor> states;
  for (const capture::OwnStream& stream : streams) states.push_back(stream.generator.get_state());
  return AtEnd([&streams, states = std::move(states)] {
    for (size_t i = 0; i < states.size(); ++i) {
      at::Generator generator = streams[i].generator;
      const capture::GeneratorLock lock(generator);
      generator.set_state(states[i]);
    }
  });
}

AtEnd useThreadsAndRandom(int threads, const compile::ProgramOptions& options) {
  at::Generator generator = at::globalContext().defaultGenerator(compile::captureDevice(options));
  const int threads_before = at::get_num_threads();
  const capture::GeneratorLock lock(generator);
  const at::Tensor random = generator.get_state();
  if (options.has_seed) generator.set_current_seed(options.seed);
  at::set_num_threads(threads);
  return AtEnd([generator, threads_before, random]() mutable {
    at::set_num_threads(threads_before);
    const capture::GeneratorLock again(generator);
    generator.set_state(random);
  });
}

AtEnd observeResults(std::unordered_set<uint64_t>* seen) {
  if (!seen) return AtEnd([] {});
  observed = seen;
  at::RecordFunctionCallback callback(
      [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> { return nullptr; }, noteResults);
  const at::CallbackHandle handle =
      at::addThreadLocalCallback(callback.needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
  return AtEnd([handle] {
    at::removeCallback(handle);
    observed = nullptr;
  });
}

PlainStep runPlainly(const VerifyRequest& request, const ir::Graph& captured, const std::vector<at::Tensor>& arguments,
                     double loss_gradient, c10::Device device) {
  const c10::AutoGradMode grad_mode(request.options.training);
  std::vector<at::Tensor> copies;
  for (const at::Tensor& argument : arguments)
    copies.push_back(argument.device() == device ? argument.detach().clone() : argument.detach().to(device));
  const std::vector<at::Tensor> results = request.eager(std::move(copies));
  PlainStep step;
  const int64_t loss = request.options.training ? lossResult(captured) : -1;
  if (loss >= 0 && static_cast<size_t>(loss) < results.size() && results[loss].requires_grad()) {
    std::vector<at::Tensor> parameters;
    std::vector<size_t> owners;
    for (size_t i = 0; i < request.program.model.size(); ++i) {
      const capture::ModelTensor& each = request.program.model[i];
      if (!each.is_parameter || !each.tensor->defined() || !each.tensor->requires_grad()) continue;
      parameters.push_back(*each.tensor);
      owners.push_back(i);
    }
    const at::Tensor& root = results[loss];
    const std::vector<std::vector<at::Tensor>> gradients =
        capture::gradients(root, at::full_like(root.detach(), loss_gradient), parameters);
    step.gradients.resize(request.program.model.size());
    for (size_t i = 0; i < owners.size(); ++i) step.gradients[owners[i]] = gradients[i];
  }
  for (const at::Tensor& result : results) step.results.push_back(result.defined() ? result.detach() : result);
  if (request.after_eager) request.after_eager();
  return step;
}

std::vector<at::Tensor> unscaledGradients(const std::vector<at::Tensor>& sums,
                                          const compile::OptimizerSpec& optimizer) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& sum : sums)
    gradients.push_back(!sum.defined() || optimizer.loss_scaling == 1 ? sum : sum.mul(1 / optimizer.loss_scaling));
  return gradients;
}

}  // namespace abele::verification

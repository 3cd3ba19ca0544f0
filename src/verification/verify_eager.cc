#include "verification/verify_eager.h"

#include <mutex>
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

}  // namespace

RestoredModel::RestoredModel(const std::vector<capture::ModelTensor>& model) {
  const c10::AutoGradMode no_grad(false);
  for (const capture::ModelTensor& each : model) {
    if (!each.tensor->defined() || !each.tensor->has_storage()) continue;
    const at::Tensor tensor = each.tensor->detach();
    const c10::VariableVersion& counter = each.tensor->unsafeGetTensorImpl()->version_counter();
    saved_.push_back({*each.tensor, tensor.clone(), {}, counter.enabled() ? counter.current_version() : 0});
    if (isTrained(*each.tensor)) saved_.back().gradient = std::exchange(each.tensor->mutable_grad(), at::Tensor());
  }
}

RestoredModel::~RestoredModel() {
  const c10::AutoGradMode no_grad(false);
  for (const Saved& saved : saved_) {
    if (!isSame(saved.tensor, saved.copy)) saved.tensor.detach().copy_(saved.copy);
    c10::VariableVersion counter = saved.tensor.unsafeGetTensorImpl()->version_counter();  // shared with the tensor
    if (counter.enabled()) counter.set_version(saved.version);
    if (isTrained(saved.tensor)) saved.tensor.mutable_grad() = saved.gradient;
  }
}

RestoredGenerators::RestoredGenerators(const std::vector<capture::OwnStream>& streams) : streams_(streams) {
  for (const capture::OwnStream& stream : streams) states_.push_back(stream.generator.get_state());
}

RestoredGenerators::~RestoredGenerators() {
  for (size_t i = 0; i < states_.size(); ++i) {
    at::Generator generator = streams_[i].generator;
    const capture::GeneratorLock lock(generator);
    generator.set_state(states_[i]);
  }
}

ThreadsAndRandom::ThreadsAndRandom(int threads, const compile::ProgramOptions& options)
    : threads_(at::get_num_threads()),
      generator_(at::globalContext().defaultGenerator(compile::captureDevice(options))) {
  const capture::GeneratorLock lock(generator_);
  random_ = generator_.get_state();
  if (options.has_seed) generator_.set_current_seed(options.seed);
  at::set_num_threads(threads);
}

ThreadsAndRandom::~ThreadsAndRandom() {
  at::set_num_threads(threads_);
  const capture::GeneratorLock lock(generator_);
  generator_.set_state(random_);
}

Observer::Observer(bool is_on) : seen_(std::make_unique<std::unordered_set<uint64_t>>()) {
  if (!is_on) return;
  observed = seen_.get();
  at::RecordFunctionCallback callback(
      [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> { return nullptr; }, noteResults);
  handle_ = at::addThreadLocalCallback(callback.needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
}

Observer::~Observer() {
  if (handle_ == 0) return;
  at::removeCallback(handle_);
  observed = nullptr;
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
  if (loss >= 0 && static_cast<size_t>(loss) < results.size() && results[static_cast<size_t>(loss)].requires_grad()) {
    std::vector<at::Tensor> parameters;
    std::vector<size_t> owners;
    for (size_t i = 0; i < request.program.model.size(); ++i) {
      const capture::ModelTensor& each = request.program.model[i];
      if (!each.is_parameter || !each.tensor->defined() || !each.tensor->requires_grad()) continue;
      parameters.push_back(*each.tensor);
      owners.push_back(i);
    }
    const at::Tensor& root = results[static_cast<size_t>(loss)];
    const std::vector<std::vector<at::Tensor>> gradients =
        capture::gradients(root, at::full_like(root.detach(), loss_gradient), parameters);
    step.gradients.resize(request.program.model.size());
    for (size_t i = 0; i < owners.size(); ++i) step.gradients[owners[i]] = gradients[i];
  }
  for (const at::Tensor& result : results) step.results.push_back(result.defined() ? result.detach() : result);
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

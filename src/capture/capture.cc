#include "capture/capture.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full_like.h>
#include <c10/core/GradMode.h>

#include "base/error.h"
#include "capture/annotate.h"
#include "capture/autograd_bridge.h"
#include "capture/composite_observer.h"
#include "capture/dispatch_mode.h"
#include "capture/recorder.h"
#include "capture/type_bridge.h"

namespace abele::capture {
namespace {

/// Makes a recorder the thread's current one.
class CurrentScope {
 public:
  explicit CurrentScope(Recorder* recorder) : outer_(std::exchange(currentRecorder(), recorder)) {}
  ~CurrentScope() { currentRecorder() = outer_; }
  CurrentScope(const CurrentScope&) = delete;
  CurrentScope& operator=(const CurrentScope&) = delete;

 private:
  Recorder* outer_;
};

/// Puts the memory of model tensors back that the program exchanged (tensor.data = other).
class ModelMemory {
 public:
  explicit ModelMemory(const Request& request) : request_(request) {
    for (const ModelTensor& tensor : request.model)
      saved_.push_back(tensor.tensor->defined() ? tensor.tensor->detach() : at::Tensor());
  }
  ~ModelMemory() {
    const c10::AutoGradMode no_grad(false);
    for (size_t i = 0; i < saved_.size(); ++i)
      if (isReplaced(i)) request_.model[i].tensor->set_data(saved_[i]);
  }
  ModelMemory(const ModelMemory&) = delete;
  ModelMemory& operator=(const ModelMemory&) = delete;

  void requireUnreplaced() const {
    for (size_t i = 0; i < saved_.size(); ++i)
      ABELE_REQUIRE(!isReplaced(i), E0108,
                    {.what = cat("forward replaced the memory of ", request_.model[i].name),
                     .expected = "writes into the tensor",
                     .remedy = cat("use ", request_.model[i].name, ".copy_(value)")});
  }

 private:
  bool isReplaced(size_t i) const {
    const at::Tensor& now = *request_.model[i].tensor;
    if (!saved_[i].defined() || !saved_[i].has_storage() || saved_[i].layout() != at::kStrided) return false;
    return !now.storage().is_alias_of(saved_[i].storage()) || now.storage_offset() != saved_[i].storage_offset() ||
           now.scalar_type() != saved_[i].scalar_type() || now.sizes() != saved_[i].sizes() ||
           now.strides() != saved_[i].strides();
  }

  const Request& request_;
  std::vector<at::Tensor> saved_;
};

/// Adds the results of forward as outputs; returns them detached, as they are now.
void recordResults(Recorder& recorder, const std::vector<at::Tensor>& results, std::vector<int32_t>* result_output,
                   std::vector<at::Tensor>* host_results) {
  int32_t num_outputs = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    // A tensor without memory is no result: valueOf refuses it.
    const bool is_meta = results[i].defined() && results[i].is_meta();
    const bool is_host =
        !is_meta && (!results[i].defined() || !results[i].has_storage() || !recorder.knows(results[i]));
    result_output->push_back(is_host ? ir::kNone : num_outputs);
    if (is_host) {
      host_results->push_back(results[i]);
      continue;
    }
    ++num_outputs;
    const ir::ValueId value = recorder.valueOf(results[i]);
    recorder.graph().outputs.push_back({value, ir::OutputKind::kResult, static_cast<int32_t>(i)});
  }
}

/// What remains of the results when the model's tensors have been put back.
std::vector<at::Tensor> detached(Recorder& recorder, const std::vector<at::Tensor>& results) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& result : results) {
    if (!result.defined()) {
      values.emplace_back();
      continue;
    }
    values.push_back(result.has_storage() && recorder.isExternal(result) ? result.detach().clone() : result.detach());
  }
  return values;
}

void recordBackward(Recorder& recorder, const Request& request, const DispatchMode& mode) {
  const auto [loss, loss_value] = recorder.findLoss();
  recorder.graph().outputs.push_back({loss_value, ir::OutputKind::kLoss, ir::kNone});
  recorder.attribution().startBackward();
  std::vector<at::Tensor> parameters;
  std::vector<const ModelTensor*> owners;
  for (const ModelTensor& tensor : request.model) {
    if (!tensor.is_parameter || !tensor.tensor->defined() || !tensor.tensor->requires_grad()) continue;
    parameters.push_back(*tensor.tensor);
    owners.push_back(&tensor);
  }
  // As in PopTorch: what the loss does not reach is simply not trained.
  if (parameters.empty() || !loss.requires_grad()) return;
  at::Tensor loss_gradient;
  {
    const DispatchMode::Paused paused(mode);
    loss_gradient = at::full_like(loss.detach(), request.loss_gradient);
    recorder.addConstant(loss_gradient, kLossGradient);
  }
  const std::vector<at::Tensor> grads = gradients(loss, loss_gradient, parameters);
  recorder.rethrowFailure();
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined()) continue;
    const ir::ValueId value = recorder.valueOf(grads[i]);
    const int32_t external = recorder.externalOf(*owners[i]);
    recorder.graph().outputs.push_back({value, ir::OutputKind::kGradient, external});
  }
}

/// Forward and backward under the mode. Exceptions of the program pass through, unless they hide one of Abele's own.
std::vector<at::Tensor> recordProgram(Recorder& recorder, const Request& request, std::vector<at::Tensor> arguments,
                                      const ModelMemory& memory, std::vector<int32_t>* result_output,
                                      std::vector<at::Tensor>* host_results) {
  const DispatchMode mode(&recorder, request.mode_object);
  recorder.attach(&mode);
  const CurrentScope current(&recorder);
  const c10::AutoGradMode grad_mode(request.training);
  try {
    const CompositeObserver observer;
    const std::vector<at::Tensor> results = request.forward(std::move(arguments));
    recorder.rethrowFailure();
    memory.requireUnreplaced();
    recordResults(recorder, results, result_output, host_results);
    if (request.training) recordBackward(recorder, request, mode);
    const DispatchMode::Paused paused(mode);
    return detached(recorder, results);
  } catch (...) {
    recorder.rethrowFailure();
    throw;
  }
}

}  // namespace

namespace {

int64_t& captureCount() {
  thread_local int64_t count = 0;
  return count;
}

}  // namespace

int64_t captureNumber() { return captureCount(); }

Recording capture(const Request& request) {
  ABELE_REQUIRE(currentRecorder() == nullptr || request.is_nested, E0107,
                {.what = "a capture was started inside another one",
                 .remedy = "compile the inner model before the outer one, or call it as a plain module"});
  if (!request.is_nested) ++captureCount();
  const ModelMemory memory(request);
  Recorder recorder(request);
  std::vector<int32_t> result_output;
  std::vector<at::Tensor> host_results;
  std::vector<at::Tensor> results =
      recordProgram(recorder, request, recorder.addArguments(), memory, &result_output, &host_results);
  Recording recording = recorder.finish();
  recording.result_output = std::move(result_output);
  recording.host_results = std::move(host_results);
  recording.results = std::move(results);
  return recording;
}

}  // namespace abele::capture

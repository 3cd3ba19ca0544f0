#include "capture/capture.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>

#include "base/error.h"
#include "base/log.h"
#include "base/turns.h"
#include "capture/annotate.h"
#include "capture/autograd_bridge.h"
#include "capture/composite_observer.h"
#include "capture/dispatch_mode.h"
#include "capture/math_bits.h"
#include "capture/recorder.h"
#include "capture/type_bridge.h"

namespace abele::capture {
namespace {

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
    return now.storage().unsafeGetStorageImpl() != saved_[i].storage().unsafeGetStorageImpl() ||
           now.storage_offset() != saved_[i].storage_offset() || now.scalar_type() != saved_[i].scalar_type() ||
           now.sizes() != saved_[i].sizes() || now.strides() != saved_[i].strides();
  }

  const Request& request_;
  std::vector<at::Tensor> saved_;
};

/// Adds the results of forward as outputs.
void recordResults(Recorder& recorder, const std::vector<at::Tensor>& results) {
  int32_t num_outputs = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    // A tensor without memory cannot be a result: valueOf refuses it.
    const bool is_meta = results[i].defined() && results[i].is_meta();
    const bool is_host =
        !is_meta && (!results[i].defined() || !results[i].has_storage() || !recorder.values().knows(results[i]));
    recorder.recording().result_output.push_back(is_host ? ir::kNone : num_outputs);
    if (is_host) {
      recorder.recording().host_results.push_back(results[i]);
      continue;
    }
    ++num_outputs;
    const ir::ValueId value = recorder.valueOf(resolved(results[i]));
    recorder.graph().outputs.push_back({value, ir::OutputKind::kResult, static_cast<int32_t>(i)});
  }
}

/// Results of forward in memory of their own, which backward may have written.
void recordResultsAgain(Recorder& recorder, const std::vector<at::Tensor>& results) {
  for (ir::Output& output : recorder.graph().outputs) {
    if (output.kind != ir::OutputKind::kResult) continue;
    const at::Tensor& result = results[output.target];
    if (!recorder.inputs().contains(result)) output.value = recorder.valueOf(resolved(result));
  }
}

/// The results for the caller. Those in memory of the model or of an argument are copied, because that memory gets its
/// old contents back.
std::vector<at::Tensor> detached(Recorder& recorder, const std::vector<at::Tensor>& results) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& result : results) {
    if (!result.defined()) {
      values.emplace_back();
      continue;
    }
    const at::Tensor value = resolved(result.detach());
    values.push_back(value.has_storage() && recorder.inputs().contains(value) ? value.clone() : value);
  }
  return values;
}

/// Hooks that run when a gradient has been added to .grad would never run: the device keeps the gradients.
void warnOfAccumulationHooks(const std::vector<const ModelTensor*>& parameters) {
  const auto found = std::find_if(parameters.begin(), parameters.end(),
                                  [](const ModelTensor* each) { return hasAccumulationHooks(*each->tensor); });
  if (found != parameters.end())
    log::warn(
        (*found)->name,
        " has a hook that waits for its gradient to be accumulated, and it is never called: gradients stay on the "
        "device; remove the hook, or use the optimizer of the model for what it does");
}

/// A program that trains in eager on what forward returns trains on something else here, if that is more than the loss.
void warnOfReturnedLoss(const std::vector<at::Tensor>& results, const at::Tensor& loss) {
  const std::string mark = inLanguage("abele::identityLoss");
  std::vector<LossImage> images;
  for (const at::Tensor& result : results) images.push_back(imageOfLoss(result, loss));
  const auto first = [&](LossImage image) { return std::ranges::find(images, image) - images.begin(); };
  const auto found = [&](ptrdiff_t i) { return static_cast<size_t>(i) < results.size(); };
  if (const ptrdiff_t i = first(LossImage::kWithTerm); found(i))
    return log::warn("result ", i,
                     " of forward is its loss plus a term that is no part of the loss: training leaves the term ",
                     "out; mark the sum as the loss with ", mark);
  if (found(first(LossImage::kSame))) return;
  if (const ptrdiff_t i = first(LossImage::kMultiple); found(i))
    return log::warn("result ", i,
                     " of forward is a multiple of its loss, and training starts from the loss itself; mark ",
                     "the multiple as the loss with ", mark);
  // A program in eager calls backward() of one element.
  const auto made = std::ranges::find_if(results, [&](const at::Tensor& result) {
    return result.defined() && result.numel() == 1 && isFunctionOf(result, loss);
  });
  if (made != results.end())
    log::warn("result ", made - results.begin(),
              " of forward is made of its loss, and training starts from the loss itself; if the result is to be "
              "trained on, mark it with ",
              mark);
}

/// Forward computes with tensors that are not the model's, and no code reads their gradients.
void warnOfForeignParameters(Recorder& recorder, const Request& request, const Functions& functions) {
  for (const at::Tensor& leaf : leavesOf(functions)) {
    const std::optional<std::string> line = recorder.inputs().lineOfConstant(leaf);
    if (!line) continue;
    const std::string name = request.name_of ? request.name_of(leaf.storage().unsafeGetStorageImpl()) : std::string();
    log::warn(name.empty() ? "a tensor" : name, " (", *line, ", ", typeOf(leaf).str(),
              ") requires a gradient and is not a parameter of the model: forward uses its values, and nothing trains "
              "it; to train it, make it a parameter of the model");
  }
}

void recordBackward(Recorder& recorder, const Request& request, const std::vector<at::Tensor>& results,
                    const DispatchMode& mode) {
  const auto [loss, loss_value] = recorder.losses().find(recorder.graph());
  warnOfReturnedLoss(results, loss);
  recorder.graph().outputs.push_back({loss_value, ir::OutputKind::kLoss, ir::kNone});
  const Functions functions = loss.requires_grad() ? functionsOf(loss) : Functions();
  warnOfForeignParameters(recorder, request, functions);
  recorder.attribution().startBackward();
  std::vector<at::Tensor> parameters;
  std::vector<const ModelTensor*> owners;
  for (const ModelTensor& tensor : request.model) {
    if (!tensor.is_parameter || !tensor.tensor->defined() || !tensor.tensor->requires_grad()) continue;
    parameters.push_back(*tensor.tensor);
    owners.push_back(&tensor);
  }
  warnOfAccumulationHooks(owners);
  // As in PopTorch: what the loss does not reach is simply not trained.
  if (!parameters.empty() && !loss.requires_grad())
    log::warn("the loss depends on no parameter that is trained, and training changes nothing: forward detaches what ",
              "it is made of, or runs without gradients");
  if (parameters.empty() || !loss.requires_grad()) return;
  if (!recorder.savesByHooks()) recorder.recording().backward = hashOf(functions, parameters);
  if (request.earlier && recorder.recording().backward && recorder.recording().backward == request.earlier->backward) {
    recorder.recording().lacks_backward = true;
    return;
  }
  at::Tensor loss_gradient;
  {
    const DispatchMode::Paused paused(mode);
    loss_gradient = at::full_like(loss.detach(), request.loss_gradient);
    recorder.inputs().addConstant(loss_gradient, kLossGradient);
  }
  std::vector<std::vector<ir::ValueId>> values(parameters.size());
  const Completed record = [&](size_t i, const at::Tensor& gradient) {
    values[i].push_back(recorder.valueOf(resolved(gradient)));
    if (request.made) recorder.recording().gradients[owners[i] - request.model.data()].push_back(gradient.detach());
    const DispatchMode::Paused paused(mode);
    return request.drops_gradients ? at::empty({1}, gradient.options()).expand(gradient.sizes()) : gradient;
  };
  const std::vector<std::vector<at::Tensor>> grads = [&] {
    const DispatchMode::Hidden hidden(mode);
    return gradients(loss, loss_gradient, parameters, request.drops_gradients ? record : Completed());
  }();
  recorder.rethrowFailure();
  std::map<int32_t, const ModelTensor*> owner_of;  // by external
  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].empty()) continue;
    if (values[i].empty())
      for (const at::Tensor& gradient : grads[i]) record(i, gradient);
    const int32_t external = recorder.externalOf(*owners[i]);
    const auto [other, is_first] = owner_of.emplace(external, owners[i]);
    ABELE_REQUIRE(is_first, E0105,
                  {.what = "two parameters that are trained share memory",
                   .found = cat(other->second->name, ", ", owners[i]->name),
                   .expected = "separate memory for each parameter",
                   .remedy = inLanguage("register one tensor in both places, or a clone() of it")});
    ABELE_REQUIRE(!recorder.inputs().overlapsAnotherInUse(*owners[i]->tensor), E0105,
                  {.what = cat("parameter ", owners[i]->name,
                               " is trained, and another tensor of the model shares a part of its memory"),
                   .found = typeOf(*owners[i]->tensor).str(),
                   .expected = "separate memory for each parameter, or two tensors with the same memory as a whole",
                   .remedy = "make one of them from a clone(), or compute it in forward from the other"});
    for (const ir::ValueId value : values[i])
      recorder.graph().outputs.push_back({value, ir::OutputKind::kGradient, external});
  }
}

/// Keeps the gradients that parameters have aside while a program is recorded.
class GradientsAside {
 public:
  explicit GradientsAside(const Request& request) {
    for (const ModelTensor& each : request.model) {
      if (!each.is_parameter || !each.tensor->defined() || !each.tensor->requires_grad()) continue;
      kept_.emplace_back(&each, each.tensor->grad());
      each.tensor->mutable_grad() = at::Tensor();
    }
  }
  ~GradientsAside() {
    for (const auto& [parameter, grad] : kept_) parameter->tensor->mutable_grad() = grad;
  }
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;

  /// Eager would add what backward() has left to the gradient of the loss.
  void requireNone() const {
    for (const auto& [parameter, grad] : kept_)
      ABELE_REQUIRE(!parameter->tensor->grad().defined(), E0106,
                    {.what = "forward calls backward(), which leaves gradients in parameters that are trained",
                     .at = parameter->name,
                     .expected = "only gradients of the marked loss",
                     .remedy = cat("compute the gradients that forward needs with ",
                                   inLanguage("torch::autograd::grad(outputs, inputs)"))});
  }

 private:
  std::vector<std::pair<const ModelTensor*, at::Tensor>> kept_;
};

/// Forward and backward under the mode. Exceptions of the program pass through, unless they hide one of Abele's own.
void recordProgram(Recorder& recorder, const Request& request, std::vector<at::Tensor> arguments,
                   const ModelMemory& memory) {
  const DispatchMode mode(&recorder, request.mode_object);
  recorder.attach(&mode);
  Recorder* const outer = std::exchange(currentRecorder(), &recorder);
  const auto recorded = c10::make_scope_exit([outer] { currentRecorder() = outer; });
  const c10::AutoGradMode grad_mode(request.training);
  try {
    const CompositeObserver observer;
    const GradientsAside aside(request);
    const uint64_t first_function = at::sequence_number::peek();
    const std::vector<at::Tensor> results = request.forward(std::move(arguments));
    recorder.rethrowFailure();
    if (request.training) aside.requireNone();
    memory.requireUnreplaced();
    recordResults(recorder, results);
    if (request.training) {
      recordBackward(recorder, request, results, mode);
      recordResultsAgain(recorder, results);
      recorder.replaceBuffersAgain();
    }
    recorder.locks().unlockAll();
    const DispatchMode::Paused paused(mode);
    if (request.training && !request.is_nested)  // memory that is left afterwards was kept by forward
      for (const at::Tensor& result : results) freeSaved(result, first_function);
    recorder.recording().results = detached(recorder, results);
  } catch (const std::exception& error) {
    recorder.rethrowLockedRead(error);
    throw;
  }
}

/// Observers of this thread's operators (torch.profiler) would look at memory that is locked. Returns those that there
/// were.
at::RecordFunctionTLS stopObservers() {
  const at::RecordFunctionTLS before = at::get_record_function_tls_();
  at::RecordFunctionTLS none = before;
  none.sorted_tls_callbacks_.clear();
  at::set_record_function_tls_(none);
  return before;
}

int64_t& captureCount() {
  thread_local int64_t count = 0;
  return count;
}

/// One capture at a time: all of them mark the default generator, write into memory of models, which may share some,
/// and put it back.
Turns::Turn captureTurn() {
  static auto* const turns = new Turns;  // threads may compile while the process ends
  return turns->isMine() ? Turns::Turn() : turns->take("a compilation");
}

}  // namespace

int64_t captureNumber() { return captureCount(); }

Recording capture(const Request& request) {
  ABELE_REQUIRE(currentRecorder() == nullptr || request.is_nested, E0107,
                {.what = "a capture was started inside another one",
                 .remedy = "compile the inner model before the outer one, or call it as a plain module"});
  const Turns::Turn turn = captureTurn();
  if (!request.is_nested) ++captureCount();
  // Autocast keeps the casts of weights until its outermost context ends: eager's must not become constants of a
  // program, nor what a capture made serve anything else.
  at::autocast::clear_cache();
  const auto casts = c10::make_scope_exit([] { at::autocast::clear_cache(); });
  const at::RecordFunctionTLS observers = request.is_nested ? at::get_record_function_tls_() : stopObservers();
  const auto unobserved = c10::make_scope_exit([&] { at::set_record_function_tls_(observers); });
  const ModelMemory memory(request);
  Recorder recorder(request);
  if (request.made) recorder.recording().gradients.resize(request.model.size());
  recordProgram(recorder, request, recorder.addArguments(), memory);
  at::autocast::clear_cache();  // the casts are the capture's, not what the program holds
  return recorder.finish();
}

}  // namespace abele::capture

// The parts of a compiled Session, and the free functions it is made of. Private to host/session*.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "host/compiled_program.h"
#include "host/session.h"
#include "runtime/device/cpu/cpu_backend.h"

namespace abele::host {

/// A program on its devices. Built apart from the session and moved in when complete, so that a compile that throws
/// leaves the session as it was.
struct Compiled : CompiledProgram {
  std::vector<capture::ModelTensor> model;
  int32_t loss_gradient = -1;         // the constant that backward starts from, as an external; -1: none
  at::Tensor unscaled_loss_gradient;  // its value without loss scaling
  std::vector<at::Tensor*> model_of;  // by external index: the model's tensor, null for externals of our own
  // How it was made, for people; absent when the program was loaded or found in the cache.
  ir::Graph captured;
  ir::Graph graph;  // after the passes
  plan::Plan plan;
  bool is_made_here = false;
  // Automatic loss scaling: the factor beside the optimizer's own, and what was counted since it was looked at.
  double loss_scale_factor = 1;
  int64_t updates_counted = 0;
  runtime::GradientSizes counted;
  // Declared last: workers stop before the memory and the program they use go away.
  std::unique_ptr<runtime::CpuBackend> backend;
  std::unique_ptr<runtime::Runtime> runtime;
};

struct Session::Impl {
  SessionOptions options;
  std::unique_ptr<Compiled> compiled;
  runtime::StepReport last_step;
  int64_t last_step_allocations = 0;
  double capture_s = 0;
  double compile_s = 0;
  bool from_cache = false;
  std::vector<at::Tensor> synthetic;           // the made-up inputs of every call
  std::map<std::string, at::Tensor> anchored;  // of the last call
  mutable std::string captured_text;           // printed when first asked for

  int64_t microBatches() const { return options.device_iterations * options.gradient_accumulation; }
  /// Makes a program that is on its devices the session's own.
  void adopt(std::unique_ptr<Compiled> next);
  /// Throws E0705 naming the call when nothing is compiled.
  Compiled& require(const char* call) const;
};

/// Type as the graph would write it.
Type typeOf(const at::Tensor& tensor);

// session_inputs.cc
/// Throws E0702 for values outside their range.
void checkOptions(const SessionOptions& options);
/// Throws E0703 when dim 0 of an input cannot be split into the micro-batches of a call.
void checkBatchSplit(const SessionOptions& options, const std::vector<at::Tensor>& inputs);
/// Rows of micro-batch 0, each in memory of its own: two inputs that alias must not look like one to capture.
std::vector<at::Tensor> firstMicroBatch(const std::vector<at::Tensor>& inputs, int64_t micro_batches);
/// Throws E0704 at the first input that differs from the compiled ones.
void checkSameInputs(const std::vector<Type>& compiled, const std::vector<at::Tensor>& inputs);
/// Detached, contiguous.
std::vector<at::Tensor> bindable(const std::vector<at::Tensor>& inputs);

/// Random numbers like these inputs; zeros for integers.
std::vector<at::Tensor> syntheticLike(const std::vector<Type>& types);

// session_results.cc
/// Micro-batches whose results a call returns, in order.
std::vector<int64_t> returnedMicroBatches(OutputMode mode, int64_t period, int64_t count);
/// The tensors of one call's results, and where the result of each micro-batch goes. Arguments that forward writes are
/// targets too: they reach the caller's tensors only when the step is complete.
struct Results {
  std::vector<at::Tensor> returned;            // by flattened result
  std::vector<at::Tensor> anchored;            // by anchor
  std::vector<std::vector<at::Tensor>> bound;  // [target][micro-batch]; undefined: not wanted
  std::vector<at::Tensor> written;             // by entry of CompiledProgram::written: all rows
  struct Sum {
    int32_t index = 0;  // in returned, or in anchored
    bool is_anchor = false;
    int32_t target = 0;
  };
  std::vector<Sum> sums;             // results whose micro-batches are still to be added up
  std::vector<at::Tensor> previous;  // by anchor: of updated parameters, the value before the call
};
Results allocateResults(const SessionOptions& options, const Compiled& compiled);
/// After the step: sums, and anchored parameters in the micro-batches between updates.
void finishResults(const SessionOptions& options, const Compiled& compiled, Results& results);
void writeBack(const Compiled& compiled, const Results& results, const std::vector<at::Tensor>& inputs);

// session_program.cc
/// Everything that describes the recording apart from the executable and the anchors.
void describe(Compiled& compiled, const capture::Recording& recording, const std::vector<at::Tensor>& inputs);
/// Names and devices of the stages, from graph and plan.
void describeStages(Compiled& compiled);
/// What the cache keeps: all that does not follow from the recording; and back.
CompiledProgram executableOnly(const Compiled& compiled);
void takeExecutable(CompiledProgram found, Compiled& compiled);
/// The stream that micro-batch 0 of the first step starts from. Never the default generator itself.
at::Generator makeGenerator(const SessionOptions& options);

// session_load.cc
/// E0401 when the pipeline has fewer micro-batches than PopTorch's minimum for its stages.
void checkPipelineMinimum(const SessionOptions& options, int64_t forward_stages);
/// Memory, weights, constants, hyper-parameters, random stream and workers of what was built.
void load(Compiled& compiled, const SessionOptions& options, const at::Generator& generator);
void uploadModel(Compiled& compiled);
/// The memory of `host` that external `index` stands for: host itself, or the flat extent of a tensor with gaps.
at::Tensor memoryOf(const Compiled& compiled, size_t index, const at::Tensor& host);
void setHypers(Compiled& compiled, const OptimizerSpec& optimizer);

// loss_scaling.cc
/// What the next step's loss is multiplied by.
double finalLossScale(const Compiled& compiled);
/// After a completed step: automatic loss scaling looks at its gradients.
void adaptLossScale(Compiled& compiled, const SessionOptions& options);
/// Name of the automatic factor in the optimizer's state.
inline constexpr char kLossScaleFactor[] = "lossScaleUpdateFactor";
at::Tensor lossScaleAnchor(const SessionOptions& options, const Anchor& anchor, double scale);

// session_dump.cc
/// Logs the graphs of a compilation, and writes the file that POPTORCH_EXPORT_PROTO_FILE names (E0702).
void showCompiled(const Compiled& compiled);

}  // namespace abele::host

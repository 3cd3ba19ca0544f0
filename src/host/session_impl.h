// The parts of a compiled Session, and the free functions it is made of. Private to host/session*.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "host/session.h"
#include "runtime/device/cpu/cpu_backend.h"

namespace abele::host {

/// Everything that one compilation made. Built apart from the session and moved in when complete, so that a compile
/// that throws leaves the session as it was.
struct Compiled {
  std::vector<capture::ModelTensor> model;
  OptimizerSpec optimizer;
  std::vector<Type> input_types;   // of the full-size inputs
  capture::Recording recording;    // its graph is the captured one; its tensors are dropped after loading
  std::vector<Type> result_types;  // of one micro-batch, by flattened result; undefined for host tensors
  ir::Graph graph;                 // after the passes
  plan::Plan plan;
  exe::Executable executable;
  std::vector<at::Tensor*> model_of;  // by external index: the model's tensor, null for externals of our own
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
  mutable std::string captured_text;  // printed when first asked for

  int64_t microBatches() const { return options.device_iterations * options.gradient_accumulation; }
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

// session_results.cc
/// The tensors of one call's results, and where the result of each micro-batch goes. Arguments that forward writes are
/// targets too, after the flattened results: they reach the caller's tensors only when the step is complete.
struct Results {
  std::vector<at::Tensor> returned;            // by flattened result
  std::vector<std::vector<at::Tensor>> bound;  // [target][micro-batch]; undefined: not wanted
  std::vector<at::Tensor> written;             // by entry of Recording::written_arguments: all rows
  struct Sum {
    int32_t result = 0, target = 0;
  };
  std::vector<Sum> sums;  // results whose micro-batches are still to be added up
};
Results allocateResults(const SessionOptions& options, const Compiled& compiled);
/// Adds kResult outputs for the arguments that forward writes.
void addWrittenArguments(const capture::Recording& recording, ir::Graph& graph);
/// OutputMode::kSum: adds the micro-batches in order.
void addUp(Results& results);
void writeBack(const Compiled& compiled, const Results& results, const std::vector<at::Tensor>& inputs);

// session_load.cc
/// E0401 when the pipeline has fewer micro-batches than PopTorch's minimum for its stages.
void checkPipelineMinimum(const SessionOptions& options, int64_t forward_stages);
/// Memory, weights, constants, hyper-parameters, random stream and workers of what was built.
void load(Compiled& compiled, const SessionOptions& options, const at::Generator& generator);
void uploadModel(Compiled& compiled);
/// The memory of `host` that external `index` stands for: host itself, or the flat extent of a tensor with gaps.
at::Tensor memoryOf(const Compiled& compiled, size_t index, const at::Tensor& host);
void setHypers(Compiled& compiled, const OptimizerSpec& optimizer);

// session_dump.cc
/// Logs the graphs of a compilation, and writes the file that POPTORCH_EXPORT_PROTO_FILE names (E0702).
void showCompiled(const Compiled& compiled);

}  // namespace abele::host

// The parts of a compiled Session, and the functions that implement it. For session/, and for folders that read these
// parts.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/DefaultDtype.h>

#include "base/at_end.h"
#include "base/fork.h"
#include "base/turns.h"
#include "compile/compiler.h"
#include "compile/measured_placement.h"
#include "device/backend.h"
#include "session/session.h"
#include "session/shared_weights.h"
#include "session/weight_watch.h"

namespace abele::memory {
class ReusedPages;
}  // namespace abele::memory

namespace abele::session {

/// How the values of an external for groups of replicas are stored in the host's tensor (ReplicaGrouping). Empty: the
/// tensor is the value.
struct Slices {
  std::vector<int32_t> replica;  // by slice: the replica whose value it is
  std::vector<bool> first;       // by slice: whether that replica is the first of its group
};

/// A program on its devices. It becomes part of the session only when it is complete, so that a failed compilation does
/// not change the session.
struct Compiled : compile::MadeProgram {
  Home home;
  caffe2::TypeMeta default_type = c10::get_default_dtype();  // at the start of compiling or loading
  std::vector<capture::ModelTensor> model;
  int32_t loss_gradient = -1;         // external with the gradient of the loss, with which backward starts; -1: none
  at::Tensor unscaled_loss_gradient;  // its value without loss scaling
  std::vector<Slices> slices;         // by external index
  std::vector<at::Tensor*> model_of;  // by external index: the model's tensor, null for externals of our own
  std::vector<Type> type_of;          // by external index: the type of the model's tensor at the time of loading
  std::vector<size_t> written_by_forward;  // externals; a training leaves out parameters
  WeightWatch weight_watch;                // watches the tensors of model_of
  compile::MetaTensors meta;
  compile::MeasuredPlacement placement;  // empty: the number of devices was not measured
  /// The model was made on the meta device, and several processes hold its stages. Each has only the tensors of its own
  /// stages.
  bool has_own_weights_alone = false;
  bool warned_of_edits = false;
  device::Watch* watch = nullptr;            // observes all results of the devices (verify.h); outlives the session
  std::shared_ptr<collective::Peers> peers;  // null for a single process
  std::vector<int32_t> makers;               // by result of a replica: exe::processesOfOutputs
  std::vector<int32_t> readers;              // by result of a replica: DeviceOptions::readers
  // Automatic loss scaling: its factor in addition to the optimizer's, and the counts since the factor was last
  // adapted.
  double loss_scale_factor = 1;
  int64_t updates_counted = 0;
  device::GradientSizes counted;
  // Declared last, so that workers stop before their memory and program are freed.
  std::unique_ptr<device::DeviceBackend> backend;
  std::optional<SharedWeights> shared;  // absent: the devices have copies of all weights
  std::unique_ptr<runtime::Runtime> runtime;
};

/// A text that must be equal in all processes that run the program together.
std::string keyOf(const Compiled& compiled);

/// The time of a call, and its actions.
struct RecentStep {
  int64_t call_ns = 0;
  std::vector<runtime::ActionTime> actions;
};

/// When the tensors of one step of the runtime moved. Units: ns since the call began.
struct Handover {
  int64_t asked_ns = 0;   // the host began to prepare the inputs
  int64_t bound_ns = 0;   // the devices can read them
  int64_t start_ns = 0;   // the step began
  int64_t begin = 0;      // the same time on the clock of TraceFile::now()
  int64_t before_ns = 0;  // time of earlier steps of the call, which the times of its actions include
};

struct Session::Impl {
  ~Impl() { drop(); }

  compile::ProgramOptions options;
  Caller* caller = nullptr;  // caller of the step or compilation that is running
  std::unique_ptr<Compiled> compiled;
  device::Watch* watch = nullptr;  // for programs compiled from now on
  runtime::StepReport last_step;
  std::vector<Handover> handovers;  // by step of the last call
  int64_t call_begin = 0;           // on the clock of TraceFile::now()
  int64_t results_ns = 0;           // from the call's start until its results were complete
  std::deque<RecentStep> recent;    // the last calls
  int64_t last_step_allocations = 0;
  int64_t sent_bytes = 0;       // bytes sent in the last call
  int64_t workspace_bytes = 0;  // since the program was loaded
  double capture_s = 0;
  double compile_s = 0;
  bool from_cache = false;
  std::vector<at::Tensor> synthetic;           // the synthetic inputs of every call
  std::map<std::string, at::Tensor> anchored;  // of the last call
  mutable std::string captured_text;           // printed at the first request

  /// Makes a loaded program the session's program.
  void adopt(std::unique_ptr<Compiled> next);
  /// Keeps the times of the last step for costs().
  void note(int64_t call_ns);
  /// Throws E0705, which names the call, if nothing is compiled; E0607 if it was compiled before a fork; E0608 within a
  /// step.
  Compiled& require(const char* call) const;
  /// Marks the session as running or compiling until the returned object ends. Throws E0608 if it is already.
  AtEnd enter(const char* call);
  /// Throws E0608 if this call comes from within a step or compilation of the session.
  void requireIdle(const char* call) const;
  /// Destroys the compiled program. Does not destroy it in a forked child, because the child does not have its threads.
  void drop();
};

// replicas.cc
std::vector<Slices> slicesOf(const exe::Executable& executable, const std::vector<compile::ReplicaGrouping>& groupings);
/// Copies between the host's tensor and every replica's copy of an external.
void uploadSlices(Compiled& compiled, size_t external, const at::Tensor& host);
void downloadSlices(const Compiled& compiled, size_t external, const at::Tensor& host);
/// A copy of the external with all its slices.
at::Tensor copyOf(const Compiled& compiled, size_t external);

// inputs.cc
/// Synthetic inputs of these types; zeros for integers.
std::vector<at::Tensor> syntheticLike(const std::vector<Type>& types, compile::SyntheticData kind);

/// Part `index` of `count` equal parts of the rows.
std::vector<at::Tensor> partOf(const std::vector<at::Tensor>& inputs, int64_t index, int64_t count);

// results.cc
/// A micro-batch of a replica.
struct Position {
  int64_t replica = 0;
  int64_t micro_batch = 0;
};
/// The micro-batches whose results a call returns (kSum: adds up), in the order of the inputs, replica fastest.
std::vector<Position> returnedMicroBatches(const compile::ProgramOptions& options, compile::OutputMode mode,
                                           int64_t period);
/// The tensors of one call's results, and the tensor for the result of each micro-batch. Arguments that forward writes
/// are results too: they are copied to the caller's tensors only after the step is complete.
struct Results {
  std::vector<at::Tensor> returned;            // by flattened result; undefined: another process gets it
  std::vector<at::Tensor> anchored;            // by anchor; undefined: another process gets it
  std::vector<std::vector<at::Tensor>> bound;  // [replica and target][micro-batch]; undefined: not needed
  std::vector<at::Tensor> written;             // by entry of CompiledProgram::written: all rows
  struct Sum {
    at::Tensor sum;                // the replica's sum
    std::vector<at::Tensor> rows;  // its micro-batches
  };
  std::vector<Sum> sums;  // results whose micro-batches are still to be added up
  /// By anchor of an updated parameter: its value before the call, by replica.
  std::vector<std::vector<at::Tensor>> previous;
  std::vector<std::vector<at::Tensor>> between;  // tensors for the values between updates, by anchor and returned
                                                 // micro-batch
};
Results allocateResults(const compile::ProgramOptions& options, const Compiled& compiled);
/// Sets Compiled::makers and readers: the process that makes each result, and those that get it.
void setReaders(Compiled& compiled, const compile::ProgramOptions& options);
/// Called after the step: completes sums, and sets anchored parameters in the micro-batches between updates.
void finishResults(const compile::ProgramOptions& options, const Compiled& compiled, Results& results);
/// The tensors to bind for step `index` of the `count` steps of a call.
std::vector<std::vector<at::Tensor>> partOf(const Results& results, int64_t index, int64_t count);
void writeBack(const Compiled& compiled, const Results& results, const std::vector<at::Tensor>& inputs);

// load.cc
/// Intra-op threads of each worker.
int threadsPerDevice(const compile::ProgramOptions& options, const exe::Executable& executable);
/// Loads a built program: memory, weights, constants, hyper-parameters, random stream and workers.
void load(Compiled& compiled, const compile::ProgramOptions& options, const at::Generator& generator);
/// Uploads all of the model's tensors. Throws E0704 for a tensor that differs from the compiled one, without a change
/// to the devices.
void uploadModel(Compiled& compiled);
/// Throws E0704 if a tensor differs from the compiled one.
void requireFits(const Compiled& compiled, size_t external, const at::Tensor& host);
/// Uploads one of the model's tensors. From then on the devices work in its memory if they can.
void uploadTensor(Compiled& compiled, size_t external);
/// If shared parameters have new memory in the module, makes the devices work in it. Throws E0704 for a tensor that
/// differs from the compiled one; without requires_fit skips it.
void followModel(Compiled& compiled, bool requires_fit);
/// Whether this process has memory for an external; relevant if several processes hold stages.
bool isHere(const Compiled& compiled, size_t external, const compile::ProgramOptions& options);
/// Warns, once, about a tensor of the model that was written since it was last equal to the device's.
void warnOfEdits(Compiled& compiled);
/// The memory of `host` that is external `index`: host itself, or the flat extent of a tensor with gaps.
at::Tensor memoryOf(const Compiled& compiled, size_t index, const at::Tensor& host);
void setHypers(Compiled& compiled, const compile::OptimizerSpec& optimizer);

// loss_scaling.cc
/// The factor of the next step's loss.
double finalLossScale(const Compiled& compiled);
/// Called after a completed step: adapts the automatic loss scale to its gradients.
void adaptLossScale(Compiled& compiled, const compile::ProgramOptions& options);
/// Name of the automatic factor in the optimizer's state.
inline constexpr char kLossScaleFactor[] = "lossScaleUpdateFactor";
/// scales: by step of the call.
at::Tensor lossScaleAnchor(const compile::ProgramOptions& options, const compile::Anchor& anchor,
                           const std::vector<double>& scales);

// trial.cc
/// Times the calls of another program than the session's, to measure a placement (compile/measured_placement.h). Loads
/// it onto devices with copies of the model's weights, and runs calls until their median is reliable: at least three in
/// half a second, fewer if a call takes long. The model, its random stream and the inputs do not change. inputs: of
/// this number of micro-batches; a call of the program takes the first ones. again: the program ran before; otherwise
/// the first call does not count, because kernels tune themselves. pages: memory that the devices of one trial leave
/// to the next. Throws the errors of loading and running.
compile::TimedCall timeTrial(const compile::Program& program, compile::MadeProgram made,
                             const compile::ProgramOptions& options, const std::vector<at::Tensor>& inputs,
                             int64_t micro_batches, bool again, memory::ReusedPages& pages);

// device_links.cc
/// Connects the accelerators of a loaded program directly with those of other processes. Does nothing unless
/// ABELE_HANDOVER is "device" and a link leads to another process. All processes call it. poll: as in Session. Throws
/// E0714, E0702, E0606, E0602.
void connectLinks(const Compiled& compiled, const compile::ProgramOptions& options, const std::function<bool()>& poll);

// dump.cc
/// For the expert setting saveInitializersToFile: writes the initial weights of a program, tensor after tensor in the
/// order of the model, each row by row. Throws E0712.
void saveInitializers(const std::vector<capture::ModelTensor>& model, const std::string& path);
/// Logs the graphs of a compilation, and writes the file in POPTORCH_EXPORT_PROTO_FILE (E0702).
void showCompiled(const Compiled& compiled);

}  // namespace abele::session

// The parts of a compiled Session, and the free functions it is made of. For session/, and for rooms that look into
// one.
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

namespace abele::session {

/// How an external lies in the host's tensor; empty: as it is. See ReplicaGrouping.
struct Slices {
  std::vector<int32_t> replica;  // by slice: whose value it is
  std::vector<bool> first;       // by slice: is that replica the first of its group
};

/// A program on its devices. Built apart from the session and moved in when complete, so that a compile that throws
/// leaves the session as it was.
struct Compiled : compile::MadeProgram {
  Home home;
  caffe2::TypeMeta default_type = c10::get_default_dtype();  // when compiling or loading began
  std::vector<capture::ModelTensor> model;
  int32_t loss_gradient = -1;           // the constant that backward starts from, as an external; -1: none
  at::Tensor unscaled_loss_gradient;    // its value without loss scaling
  std::vector<Slices> slices;           // by external index
  std::vector<at::Tensor*> model_of;    // by external index: the model's tensor, null for externals of our own
  std::vector<size_t> written_buffers;  // externals that micro-batches write
  WeightWatch weight_watch;             // watches the tensors of model_of
  compile::MetaTensors meta;
  compile::MeasuredPlacement placement;  // empty: the number of devices was not measured
  /// The model was made on the meta device, and processes hold its stages: each has the tensors of its own ones alone.
  bool has_own_weights_alone = false;
  bool warned_of_edits = false;
  device::Watch* watch = nullptr;            // sees all that the devices compute (verify.h); outlives the session
  std::shared_ptr<collective::Peers> peers;  // null where there is one process
  std::vector<int32_t> makers;               // by result of a replica: exe::processesOfOutputs
  std::vector<int32_t> readers;              // likewise: DeviceOptions::readers
  // Automatic loss scaling: the factor beside the optimizer's own, and what was counted since it was looked at.
  double loss_scale_factor = 1;
  int64_t updates_counted = 0;
  device::GradientSizes counted;
  // Declared last: workers stop before the memory and the program they use go away.
  std::unique_ptr<device::DeviceBackend> backend;
  std::optional<SharedWeights> shared;  // absent: the devices have copies of all weights
  std::unique_ptr<runtime::Runtime> runtime;
};

/// What all processes have in common that run the program together.
std::string keyOf(const Compiled& compiled);

/// What a call took, and its actions.
struct RecentStep {
  int64_t call_ns = 0;
  std::vector<runtime::ActionTime> actions;
};

/// When the tensors of one step of the runtime moved. Units: ns since the call began.
struct Handover {
  int64_t asked_ns = 0;   // the host began to make the inputs ready
  int64_t bound_ns = 0;   // the devices can read them
  int64_t start_ns = 0;   // the step began
  int64_t begin = 0;      // the same, of the clock of TraceFile::now()
  int64_t before_ns = 0;  // time of the steps before it, which its actions' times include
};

struct Session::Impl {
  ~Impl() { drop(); }

  compile::ProgramOptions options;
  Caller* caller = nullptr;  // of the step or compilation that is under way
  std::unique_ptr<Compiled> compiled;
  device::Watch* watch = nullptr;  // for programs compiled from now on
  runtime::StepReport last_step;
  std::vector<Handover> handovers;  // of the last call, by step
  int64_t call_begin = 0;           // of the clock of TraceFile::now()
  int64_t results_ns = 0;           // since it began, until its results were complete
  std::deque<RecentStep> recent;    // the last calls
  int64_t last_step_allocations = 0;
  int64_t sent_bytes = 0;       // in the last call
  int64_t workspace_bytes = 0;  // since the program came to its devices
  double capture_s = 0;
  double compile_s = 0;
  bool from_cache = false;
  std::vector<at::Tensor> synthetic;           // the made-up inputs of every call
  std::map<std::string, at::Tensor> anchored;  // of the last call
  mutable std::string captured_text;           // printed when first asked for

  /// Makes a program that is on its devices the session's own.
  void adopt(std::unique_ptr<Compiled> next);
  /// Keeps the times of the last step for costs().
  void note(int64_t call_ns);
  /// Throws E0705 naming the call when nothing is compiled, E0607 when that was before a fork, E0608 within a step.
  Compiled& require(const char* call) const;
  /// The session runs or compiles until the end. Throws E0608 where it does already.
  AtEnd enter(const char* call);
  /// Throws E0608 when this call comes from within a step or compilation of the session.
  void requireIdle(const char* call) const;
  /// Destroys what is compiled. In a forked child it is left alone: threads that sleep there were not forked.
  void drop();
};

// replicas.cc
std::vector<Slices> slicesOf(const exe::Executable& executable, const std::vector<compile::ReplicaGrouping>& groupings);
/// Between the host's tensor and every replica's copy of an external.
void uploadSlices(Compiled& compiled, size_t external, const at::Tensor& host);
void downloadSlices(const Compiled& compiled, size_t external, const at::Tensor& host);
/// A copy of the external, its slices stacked.
at::Tensor copyOf(const Compiled& compiled, size_t external);

// inputs.cc
/// Made-up contents like these inputs; zeros for integers.
std::vector<at::Tensor> syntheticLike(const std::vector<Type>& types, compile::SyntheticData kind);

/// Part `index` of `count` equal parts of the rows.
std::vector<at::Tensor> partOf(const std::vector<at::Tensor>& inputs, int64_t index, int64_t count);

// results.cc
/// A replica's micro-batch.
struct Position {
  int64_t replica = 0;
  int64_t micro_batch = 0;
};
/// Micro-batches whose results a call returns, in order: that of the inputs, replica fastest. (kSum: those it adds up.)
std::vector<Position> returnedMicroBatches(const compile::ProgramOptions& options, compile::OutputMode mode,
                                           int64_t period);
/// The tensors of one call's results, and where the result of each micro-batch goes. Arguments that forward writes are
/// targets too: they reach the caller's tensors only when the step is complete.
struct Results {
  std::vector<at::Tensor> returned;            // by flattened result; undefined: another process gets it
  std::vector<at::Tensor> anchored;            // by anchor, likewise
  std::vector<std::vector<at::Tensor>> bound;  // [replica and target][micro-batch]; undefined: not wanted
  std::vector<at::Tensor> written;             // by entry of CompiledProgram::written: all rows
  struct Sum {
    at::Tensor sum;                // a replica's part of what is returned
    std::vector<at::Tensor> rows;  // its micro-batches
  };
  std::vector<Sum> sums;  // results whose micro-batches are still to be added up
  /// By anchor: of updated parameters, the value before the call, by replica, and where the values between updates go.
  std::vector<std::vector<at::Tensor>> previous;
  std::vector<std::vector<at::Tensor>> between;  // by anchor and returned micro-batch
};
Results allocateResults(const compile::ProgramOptions& options, const Compiled& compiled);
/// Which process makes each result, and which get it: Compiled::makers and readers.
void setReaders(Compiled& compiled, const compile::ProgramOptions& options);
/// After the step: sums, and anchored parameters in the micro-batches between updates.
void finishResults(const compile::ProgramOptions& options, const Compiled& compiled, Results& results);
/// What to bind for step `index` of the `count` that make up a call.
std::vector<std::vector<at::Tensor>> partOf(const Results& results, int64_t index, int64_t count);
void writeBack(const Compiled& compiled, const Results& results, const std::vector<at::Tensor>& inputs);

// load.cc
/// Intra-op threads of each worker.
int threadsPerDevice(const compile::ProgramOptions& options, const exe::Executable& executable);
/// Memory, weights, constants, hyper-parameters, random stream and workers of what was built.
void load(Compiled& compiled, const compile::ProgramOptions& options, const at::Generator& generator);
/// Throws E0704 for a tensor that differs from the compiled one, and leaves the devices as they were.
void uploadModel(Compiled& compiled);
/// Throws E0704 if a tensor differs from the compiled one.
void requireFits(const Compiled& compiled, size_t external, const at::Tensor& host);
/// One of the model's tensors. The devices work in its memory from then on, where they may.
void uploadTensor(Compiled& compiled, size_t external);
/// Where a shared parameter was given other memory, the devices work in that from now on: the module's tensors are what
/// the program means. Throws E0704 where that differs from the compiled one; without requires_fit it is left alone.
void followModel(Compiled& compiled, bool requires_fit);
/// Does this process have memory for an external, where processes hold stages?
bool isHere(const Compiled& compiled, size_t external, const compile::ProgramOptions& options);
/// Warns, once, of a tensor of the model that was written since it was last in step with the device.
void warnOfEdits(Compiled& compiled);
/// The memory of `host` that external `index` stands for: host itself, or the flat extent of a tensor with gaps.
at::Tensor memoryOf(const Compiled& compiled, size_t index, const at::Tensor& host);
void setHypers(Compiled& compiled, const compile::OptimizerSpec& optimizer);

// loss_scaling.cc
/// What the next step's loss is multiplied by.
double finalLossScale(const Compiled& compiled);
/// After a completed step: automatic loss scaling looks at its gradients.
void adaptLossScale(Compiled& compiled, const compile::ProgramOptions& options);
/// Name of the automatic factor in the optimizer's state.
inline constexpr char kLossScaleFactor[] = "lossScaleUpdateFactor";
/// scales: by step of the call.
at::Tensor lossScaleAnchor(const compile::ProgramOptions& options, const compile::Anchor& anchor,
                           const std::vector<double>& scales);

// trial.cc
/// Steps of a program that is not the session's own, to measure a placement (compile/measured_placement.h). Loads it
/// onto devices with copies of the model's weights, and runs steps until their median is reliable: at least three steps
/// in half a second, fewer if one takes long. The model, its random stream and the inputs do not change. Throws the
/// errors of loading and running.
compile::PlacementTrial timeTrial(const compile::Program& program, compile::MadeProgram made,
                                  const compile::ProgramOptions& options, const std::vector<at::Tensor>& inputs);

// device_links.cc
/// Connects the accelerators of a loaded program with those of other processes, past the host's memory. Does nothing
/// unless ABELE_HANDOVER=device asks for it and a link leaves this process's replica. All processes call it. poll: as
/// in Session. Throws E0714, E0702, E0606, E0602.
void connectLinks(const Compiled& compiled, const compile::ProgramOptions& options, const std::function<bool()>& poll);

// dump.cc
/// The expert setting saveInitializersToFile: writes the weights that a program starts from, the elements of every
/// tensor of the model, row by row, tensor after tensor in the order of the model. Throws E0712.
void saveInitializers(const std::vector<capture::ModelTensor>& model, const std::string& path);
/// Logs the graphs of a compilation, and writes the file that POPTORCH_EXPORT_PROTO_FILE names (E0702).
void showCompiled(const Compiled& compiled);

}  // namespace abele::session

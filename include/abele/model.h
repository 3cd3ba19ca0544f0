// For users of the library: a LibTorch program compiled into stages. Read options.h and annotate.h first.
//
//   Net net;                                                         // any torch::nn::Module
//   auto model = abele::trainingModel(net, [&](at::Tensor x, at::Tensor y) {
//     return abele::identityLoss(torch::mse_loss(net.forward(x), y));
//   }, abele::Options().deviceIterations(4), abele::optim::AdamW{.lr = 1e-3});
//   auto loss = model(x, y)[0];
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "abele/export.h"
#include "abele/forward.h"
#include "abele/optim.h"
#include "abele/options.h"
#include "abele/verify.h"

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}

namespace abele {

struct Simulation;  // in simulate.h

/// One micro-batch of a program: takes its tensor arguments and returns its results.
using Forward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

namespace detail {

template <class Fn>
concept NotOptions = !std::is_convertible_v<Fn, const Options&>;
template <class Type>
concept TorchOptimizer = std::is_base_of_v<torch::optim::Optimizer, std::remove_cvref_t<Type>>;

}  // namespace detail

/// When the tensors of the last call moved. Units: s since the call began. By tensor, then by micro-batch (outputs: by
/// returned micro-batch). input: the host begins to prepare the inputs; input_complete: the devices can read them;
/// output: the micro-batch's last stage has ended; output_complete: the caller has the results.
struct ModelTimes {
  std::vector<std::vector<double>> input, input_complete, output, output_complete;
};
/// Over the micro-batches that the last call returned. Units: s.
struct Latency {
  double least = 0, most = 0, average = 0;
};

/// What save() writes beside the compiled program.
struct SaveOptions {
  bool export_model = true;    // write the weights and the optimizer's state; without them a load needs the module
  bool save_rng_state = true;  // otherwise a model that loads the file starts the random stream from its options
};

/// Use of a device's memory (docs/memory.md). Unit: bytes.
struct DeviceMemory {
  int device = 0;
  int64_t peak_bytes = 0;      // the sum of by_class
  int64_t off_chip_bytes = 0;  // bytes that its stages keep off chip, even while they are loaded on the device
  /// "weights", "optimizer state", "accumulators", "constants and buffers", "stash", "transient", "received".
  std::map<std::string, int64_t> by_class;
  std::optional<int64_t> limit_bytes;  // Options::deviceMemoryLimit

  /// Bytes left below the limit; without a limit the largest integer. Never negative, because a plan that does not fit
  /// throws E0405.
  ABELE_API int64_t spareBytes() const;
};
struct MemoryReport {
  std::vector<DeviceMemory> devices;  // those of one replica
  std::string text;                   // for people
  std::string json;                   // the same with the bytes of each layer and the largest tensors
};

/// Common to training and inference models.
/// Throws: E0705 if a call needs a compiled model. E0608 for a call from within a call of the same model (in a hook, a
/// host function, forward), and if calls of several models would wait for each other for ever. E0607 in a forked child
/// for a model that its parent compiled. In that child destroy() and the destructor copy nothing back; after destroy()
/// a call compiles the model again.
/// Threads: safe, for all models of a module. Calls of one model run one after another, in the order in which threads
/// made them. Calls of different models run at once, except compilations of one module and copies of its weights. A
/// returned reference is valid until the next call that changes its object. Only the owner moves, assigns and destroys
/// a model.
class ABELE_API CompiledModel {
 public:
  CompiledModel(CompiledModel&&) noexcept;
  CompiledModel& operator=(CompiledModel&&) noexcept;
  ~CompiledModel();

  /// Runs one step. Shapes: each input [combinedBatchSize, ...]: micro-batch k is rows [k*b, (k+1)*b). Results: see
  /// OutputMode; a result that Distributed::outputRank gives to other processes is an undefined tensor.
  /// The results are the tensors that forward returned, in order. Constants among them follow the output mode too.
  /// The first call with inputs of other shapes, types or strides compiles another program. Weights, optimizer state
  /// and random numbers continue from the program that ran last. A loaded model has a single program (E0704).
  /// Later calls pass the same structures as the first one, with the same keys of maps and the same empty optionals
  /// (E0704). Forward must accept them (E0708).
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs);
  template <detail::Argument... Inputs>
  auto operator()(const Inputs&... inputs) {
    return runFlat(detail::flattened(inputs...));
  }
  /// Runs one step and returns the results as forward returns them: auto [out, loss] = model.call<std::pair<at::Tensor,
  /// at::Tensor>>(x, y). Throws E0708 if forward returns another structure.
  template <class Result, detail::Argument... Inputs>
    requires(detail::IsStructure<Result>::value)
  Result call(const Inputs&... inputs) {
    std::string form;  // a copy, because another thread may destroy() the model meanwhile
    const auto results = runFlat(flatArguments(inputs...), &form);
    return detail::structured<Result>(results, form);
  }

  /// Captures and compiles for inputs of these shapes without running a step, and makes this the current program.
  void compile(const std::vector<at::Tensor>& inputs);
  template <detail::Argument... Inputs>
  void compile(const Inputs&... inputs) {
    compileFlat(detail::flattened(inputs...));
  }
  /// compile(), then save(). Works for ConnectionType::kNever too, on a machine without devices.
  void compileAndExport(const std::string& path, const std::vector<at::Tensor>& inputs);
  template <detail::Argument... Inputs>
  void compileAndExport(const std::string& path, const Inputs&... inputs) {
    if (!isCompiled()) compile(inputs...);
    save(path);
  }
  /// Loads a program, its weights and its state from a file. Ignores options of this model that a compiled program
  /// cannot follow (see loadTrainingModel). Throws E0712; E0705 if the model is compiled already.
  void loadExecutable(const std::string& path);
  bool isCompiled() const;
  /// The frozen copy of the options that this model uses.
  const Options& options() const;

  /// Copies the devices' weights into the module's tensors. Tensors that Options::shareWeights shares are always up to
  /// date. Buffers that forward of an InferenceModel wrote are copied back only by this call.
  void copyWeightsToHost();
  /// Copies if the devices have newer weights, and returns whether they had.
  bool copyWeightsToHostIfNeeded();
  /// Uploads the module's tensors as they are now. Device weights that were not copied back are lost. Shared parameters
  /// (Options::shareWeights) are the same memory on both sides and do not change.
  void copyWeightsToDevice();
  /// Uploads only the buffers that Options::updatableNamedBuffers lists (E0702 if it lists none).
  void copyNamedBuffersToDevice();
  /// The newest parameters and buffers by name. They are the module's own tensors, which later steps change; clone()
  /// those that must keep their values. If several processes hold stages, all call this and each gets all tensors.
  /// Throws E0711 for a model on the meta device that no process holds whole, E0705 before its tensors are read.
  std::map<std::string, at::Tensor> stateDict();
  /// Copies these values into the module and uploads them. Throws E0708, without any change, for names or shapes that
  /// do not fit.
  void loadStateDict(const std::map<std::string, at::Tensor>& state);

  /// Models attach when they are compiled, or at the first call (ConnectionType::kOnDemand, or after
  /// detachFromDevice()).
  bool isAttachedToDevice() const;
  /// Uploads the weights. Throws E0705 if attached already, E0702 if the connection type is Never.
  void attachToDevice();
  /// Copies weights back. Throws E0705 if not attached.
  void detachFromDevice();

  /// State of the random stream, as bytes. Setting a state repeats the stream from that state; throws E0708 for a
  /// tensor that is not a state.
  at::Tensor rngState() const;
  void setRngState(const at::Tensor& state);

  /// Long names of the values of the compiled program, for Options::anchorTensor.
  const std::vector<std::string>& getTensorNames() const;
  /// The value that the tensor named in Options::anchorTensor had in the last call. Throws E0708 for an unknown name.
  at::Tensor getAnchoredTensor(const std::string& short_name) const;
  ModelTimes getPerfCounters() const;
  /// From the first request of an input until all outputs are complete. The other latencies are parts of this one.
  Latency getLatency() const;
  Latency getHostIpuLatency() const;
  Latency getComputeLatency() const;
  Latency getIpuHostLatency() const;
  /// Time of the last call in cycles of 1.33 GHz. Throws E0705 before the first call, E0702 without
  /// Options::logCycleCount.
  int64_t cycleCount() const;

  /// Table of the last step: busy and waiting time and peak bytes of each stage, the bubble, the compile time.
  std::string report() const;
  /// Writes a page for a browser, one file that needs no network. It shows report() and more: a timeline of the last
  /// call beside the simulator's prediction; memory by class, layer and tensor; the options; a text that explains where
  /// the time goes and suggests improvements. Creates missing folders. Throws E0705 before compile, E0712.
  void report(const std::string& path);
  /// Use of the devices' memory. Throws E0705 before compile, and for programs that were loaded or found in the cache.
  MemoryReport memoryReport() const;
  /// Times and memory of the stages as JSON, for simulate(). They come from the last step, or before the first step
  /// from capture.
  std::string costs() const;
  /// Simulates a step of this program under its own options, from costs(). Works even if the program cannot run, as
  /// with Options::useOfflineIpuTarget. Throws E0705 before compile.
  Simulation simulate() const;
  /// Explains the program's placement to people: its stages with their lines, predicted times and bytes, and
  /// predictions for other cuts, numbers of devices and schedules (docs/placement.md). Throws E0705 before compile, and
  /// for programs that were loaded or found in the cache.
  std::string explain() const;
  /// The current program as text: its graph after the passes; its placement, schedule and memory; its executable.
  /// Throws E0705 before compile. graphText() and planText() also throw it for programs that were loaded or found in
  /// the cache.
  std::string graphText() const;
  std::string planText() const;
  std::string executableText() const;
  /// Number of compiled programs: one for each set of input shapes, types and strides.
  int64_t numPrograms() const;
  /// Records the next `steps` calls in this file, which ui.perfetto.dev opens (docs/tracing.md): the work and the
  /// waiting of each device by micro-batch, the host's part, tracepoints, and the simulator's prediction. The file is
  /// complete after these calls, at destroy() or at the end of this object. Throws E0708 if steps < 1, E0712 if the
  /// file cannot be written.
  void trace(const std::string& path, int64_t steps = 3);
  /// Writes the compiled program, the weights, the random state and, in training, the optimizer's state.
  /// loadTrainingModel or loadInferenceModel resumes from the file, bit for bit. Creates missing folders. If path is a
  /// folder, the file is model.poptorch in it. If several processes hold stages, all call this and the first one
  /// writes; for a module on the meta device each writes its part beside the file. Throws E0712 if the file cannot be
  /// written.
  void save(const std::string& path, const SaveOptions& what = {});
  /// Copies weights back and frees the devices. A later call compiles the model again.
  void destroy();
  /// Sets a function that a step calls about every 50 ms on the calling thread. If it returns true, the step stops with
  /// E0602. The model stays usable.
  void setInterrupt(std::function<bool()> poll);

 protected:
  friend class ModelAccess;
  class Core;
  class Call;
  explicit CompiledModel(std::unique_ptr<Core> core);
  /// Throws E0705 if this object was moved from.
  Core& core() const;
  /// Waits for this thread's turn. Throws E0608 within a call of the same model.
  Call enter() const;
  std::unique_ptr<Core> core_;

 private:
  friend Verification detail::verify(CompiledModel& model, const std::vector<detail::Flat>& batches);
  Verification verifyFlat(const std::vector<detail::Flat>& batches);
  static detail::Flat flatArguments(const std::vector<at::Tensor>& inputs);
  template <detail::Argument... Inputs>
  static detail::Flat flatArguments(const Inputs&... inputs) {
    return detail::flattened(inputs...);
  }
  /// form: receives the form of the results, unless null.
  std::vector<at::Tensor> runFlat(const detail::Flat& inputs, std::string* form = nullptr);
  void compileFlat(const detail::Flat& inputs);
};

/// A program compiled for training. The first call captures, compiles and uploads the module's weights. Each call then
/// runs deviceIterations weight updates on the devices. The devices work in the memory of the module's parameters if
/// they can (Options::shareWeights). The module's other tensors change when weights are copied back: by
/// copyWeightsToHost(), destroy(), the end of this object, or a call of an InferenceModel of the module or of one that
/// shares submodules.
/// Requires: the module outlives this object, unless a std::shared_ptr owns it. One live training model per module
/// (E0709). Throws: E01xx..E07xx; the module stays usable.
class ABELE_API TrainingModel : public CompiledModel {
 public:
  /// Gives each group of replicas its own value of a parameter, with `shards` replicas in a group. Call it before
  /// compile (E0705). The module's tensor then has an additional first dimension, which forward does not see: a value
  /// for every group, or for every replica. Source: spec executor.md section 9.
  void replicaGrouping(const std::string& parameter, CommGroupType type, int64_t shards,
                       VariableRetrievalMode mode = VariableRetrievalMode::kOnePerGroup);
  /// The optimizer in use. To change it, change a copy and pass it to setOptimizer. A loaded program has the optimizer
  /// that it was compiled with, and its groups name their parameters.
  const optim::Optimizer& optimizer() const;
  /// Sets new values of the compiled optimizer, from the next step on. E0706 for values that are fixed at compile.
  void setOptimizer(const optim::Optimizer& optimizer);
  /// Sets the numbers of a LibTorch optimizer (optim::fromTorch), for example after a scheduler of torch::optim changed
  /// them. An optimizer whose step() runs on the host needs no such call.
  void setOptimizer(const torch::optim::Optimizer& optimizer);
  void setOptimizer(torch::optim::Optimizer& optimizer);
  /// Copies of the optimizer's state on the devices: "exp_avg/encoder.weight". Throws E0706 for an optimizer that
  /// updates on the host, where its state is, too. save() and checkpoints throw it for the same reason.
  std::map<std::string, at::Tensor> optimizerState() const;
  /// Sets values by name. Values that are not in `state` do not change.
  void setOptimizerState(const std::map<std::string, at::Tensor>& state);
  /// The factor by which the next step multiplies its loss: the optimizer's loss_scaling times the factor of automatic
  /// loss scaling (Options::Training().setAutomaticLossScaling). Throws E0705 before compilation.
  double lossScale() const;

 private:
  friend class ModelAccess;
  using CompiledModel::CompiledModel;
};

/// A program compiled for inference. Any number of them may share a module or submodules, also with live training
/// models. A call first copies newer weights from the training devices to the module, and from there to its own
/// devices. Requires, Throws: as TrainingModel.
class ABELE_API InferenceModel : public CompiledModel {
 private:
  friend class ModelAccess;
  using CompiledModel::CompiledModel;
};

/// model.explain().
ABELE_API std::string explain(const CompiledModel& model);
/// Writes the page for a file that trace() or PVTI_OPTIONS wrote. Throws E0501 if the file is not a trace, E0712.
ABELE_API void writeReport(const std::string& path, const std::string& trace);

/// Registers a function that runs before (after) each capture of a model in this process. The post hook also runs if
/// the compilation fails. Hooks run in the order of registration. Returns: the handle for removeCompileHook. Threads:
/// safe.
ABELE_API int64_t registerPreCompileHook(std::function<void()> hook);
ABELE_API int64_t registerPostCompileHook(std::function<void()> hook);
ABELE_API void removeCompileHook(int64_t handle);

/// Returns true if this many devices exist. Devices are emulated; ABELE_EMULATED_DEVICES sets their number (default
/// 64). Returns false if a simulator variable is set.
ABELE_API bool ipuHardwareIsAvailable(int64_t num_ipus = 1);
/// Returns 2, so that programs written for this generation run. Throws E0402 if ABELE_EMULATED_DEVICES is 0.
ABELE_API int64_t ipuHardwareVersion();

/// Loads a file that save() wrote, in C++ or in Python (export_model=True). The model needs neither a forward, nor the
/// module, nor Python. Weights come from the file. If a module is given, its tensors of the same names get them and
/// belong to the model from then on; otherwise the model owns its weights. Options come from the file (savedOptions).
/// Given options apply if a compiled program can still follow them: results, devices, threads, caches, logs, seeds; the
/// column "Run time" of docs/options.md lists them. The other options keep the values in the file, and a warning names
/// those that you set. The rank of the process always comes from the given options or the environment. Throws, without
/// a change to the module: E0712 if the file cannot be read, is of the other kind, or fits another module; E0501 if it
/// is damaged; E0706 if an optimizer on the host trained it. A call after destroy() throws E0705, because the model has
/// no forward to compile.
ABELE_API TrainingModel loadTrainingModel(const std::string& path);
ABELE_API TrainingModel loadTrainingModel(const std::string& path, const Options& options);
ABELE_API TrainingModel loadTrainingModel(const std::string& path, torch::nn::Module& module);
ABELE_API TrainingModel loadTrainingModel(const std::string& path, torch::nn::Module& module, const Options& options);
ABELE_API InferenceModel loadInferenceModel(const std::string& path);
ABELE_API InferenceModel loadInferenceModel(const std::string& path, const Options& options);
ABELE_API InferenceModel loadInferenceModel(const std::string& path, torch::nn::Module& module);
ABELE_API InferenceModel loadInferenceModel(const std::string& path, torch::nn::Module& module, const Options& options);
/// The options that the program in a file was compiled with; change them and pass them to a load. Leaves out a target
/// without devices (useOfflineIpuTarget). Throws E0712, E0501.
ABELE_API Options savedOptions(const std::string& path);

/// Moves a module's parameters and buffers into a file without a name, which disappears when the process ends. They
/// take no memory until something reads or writes them, and leave memory again after a model has copied them to or from
/// the devices. The tensors keep their values. Processes that are forked later share them.
/// folder: the file's folder; empty: the system's temporary folder.   Throws: E0605, and then moves nothing.
ABELE_API void offload(torch::nn::Module& module, const std::string& folder = "");

/// The templates below wrap forward and call these functions. module may be null for inference.
ABELE_API TrainingModel makeTrainingModel(torch::nn::Module& module, Forward forward, const Options& options,
                                          const optim::Optimizer& optimizer,
                                          const std::source_location& line = std::source_location::current());
ABELE_API InferenceModel makeInferenceModel(torch::nn::Module* module, Forward forward, const Options& options,
                                            const std::source_location& line = std::source_location::current());

namespace detail {
ABELE_API TrainingModel makeTrainingModel(torch::nn::Module& module, StructuredForward forward, const Options& options,
                                          const optim::Optimizer& optimizer, const std::source_location& line);
ABELE_API InferenceModel makeInferenceModel(torch::nn::Module* module, StructuredForward forward,
                                            const Options& options, const std::source_location& line);
}  // namespace detail

/// module: a torch::nn::Module, a pointer to one, a holder (torch::nn::Linear), a torch::nn::AnyModule, or a
/// TorchScript module (script.h). Its parameters and buffers are the weights. forward: any callable that takes and
/// returns tensors, or structures of tensors and values (structure.h). If its parameters are not known (auto), it takes
/// up to 8 tensors. line: the place in the program that messages name; blocks and scopes give more exact places
/// (annotate.h).
template <class Module, detail::NotOptions Fn>
TrainingModel trainingModel(Module&& module, Fn forward, const Options& options = {},
                            const optim::Optimizer& optimizer = optim::SGD{},
                            const std::source_location& line = std::source_location::current()) {
  return detail::makeTrainingModel(detail::weightsOf(module).module, detail::wrapForward(std::move(forward)), options,
                                   optimizer, line);
}
template <class Module, detail::NotOptions Fn>
InferenceModel inferenceModel(Module&& module, Fn forward, const Options& options = {},
                              const std::source_location& line = std::source_location::current()) {
  return detail::makeInferenceModel(&detail::weightsOf(module).module, detail::wrapForward(std::move(forward)), options,
                                    line);
}
/// Uses the module's own forward, which in training returns the loss and any other results.
template <detail::ModuleLike Module>
TrainingModel trainingModel(Module&& module, const Options& options = {},
                            const optim::Optimizer& optimizer = optim::SGD{},
                            const std::source_location& line = std::source_location::current()) {
  return detail::makeTrainingModel(detail::weightsOf(module).module, detail::ownForward(module), options, optimizer,
                                   line);
}
/// The same with a LibTorch optimizer (optim::fromTorch). The devices take the groups and numbers of those that they
/// have; the step() of the others runs on the host after each call.
template <class Module, detail::NotOptions Fn, detail::TorchOptimizer Optimizer>
TrainingModel trainingModel(Module&& module, Fn forward, const Options& options, Optimizer&& optimizer,
                            const std::source_location& line = std::source_location::current()) {
  return trainingModel(module, std::move(forward), options,
                       optim::fromTorch(std::forward<Optimizer>(optimizer), detail::weightsOf(module).module), line);
}
template <detail::ModuleLike Module, detail::TorchOptimizer Optimizer>
TrainingModel trainingModel(Module&& module, const Options& options, Optimizer&& optimizer,
                            const std::source_location& line = std::source_location::current()) {
  return trainingModel(module, options,
                       optim::fromTorch(std::forward<Optimizer>(optimizer), detail::weightsOf(module).module), line);
}
template <detail::ModuleLike Module>
InferenceModel inferenceModel(Module&& module, const Options& options = {},
                              const std::source_location& line = std::source_location::current()) {
  return detail::makeInferenceModel(&detail::weightsOf(module).module, detail::ownForward(module), options, line);
}
/// A model of a callable without weights. Tensors that the callable holds are constants.
template <detail::NotOptions Fn>
  requires(!detail::ModuleLike<Fn>)
InferenceModel inferenceModel(Fn forward, const Options& options = {},
                              const std::source_location& line = std::source_location::current()) {
  return detail::makeInferenceModel(nullptr, detail::wrapForward(std::move(forward)), options, line);
}

}  // namespace abele

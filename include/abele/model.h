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

struct Simulation;  // of simulate.h

/// One micro-batch of a program: its tensor arguments in, its results out.
using Forward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

namespace detail {

template <class Fn>
concept NotOptions = !std::is_convertible_v<Fn, const Options&>;

}  // namespace detail

/// When the tensors of the last call moved. Units: s since the call began. By tensor, then by micro-batch (outputs:
/// those that are returned). input: the host begins to make the inputs ready; input_complete: the devices can read
/// them; output: the micro-batch's last stage has ended; output_complete: the results are the caller's.
struct ModelTimes {
  std::vector<std::vector<double>> input, input_complete, output, output_complete;
};
/// Of the micro-batches that the last call returned. Units: s.
struct Latency {
  double least = 0, most = 0, average = 0;
};

/// What save() writes beside the compiled program.
struct SaveOptions {
  bool export_model = true;    // the weights and the optimizer's state; without them a load needs the module
  bool save_rng_state = true;  // else a model that loads the file has the random stream that its options ask for
};

/// What the memory of a device is for (docs/memory.md). Unit: bytes.
struct DeviceMemory {
  int device = 0;
  int64_t peak_bytes = 0;      // the sum of by_class
  int64_t off_chip_bytes = 0;  // of its stages, on the device or not
  /// "weights", "optimizer state", "accumulators", "constants and buffers", "stash", "transient".
  std::map<std::string, int64_t> by_class;
  std::optional<int64_t> limit_bytes;  // Options::deviceMemoryLimit

  /// What the limit leaves; the largest number there is without one. Never negative: what does not fit is E0405.
  ABELE_API int64_t spareBytes() const;
};
struct MemoryReport {
  std::vector<DeviceMemory> devices;  // those of one replica
  std::string text;                   // for people
  std::string json;                   // the same with the bytes of each layer and the largest tensors
};

/// What training and inference models have in common.
/// Throws: E0705 where a call needs a compiled model. E0608 for a call from within a call of the same model (a hook, a
/// host function, forward), and where models that call each other would wait for each other for ever. E0607 in a forked
/// child for a model that its parent compiled; there destroy() and the end of the object copy nothing back, and after
/// destroy() the model may be called and compiles anew.
/// Threads: safe, for all models of a module. The calls of a model run one after another, in the order in which threads
/// asked; calls of different models run at once, but for compilations of one module and copies of its weights. What a
/// call returns by reference lasts until the next call that changes it. Moving, assigning and destroying the object are
/// its owner's.
class ABELE_API CompiledModel {
 public:
  CompiledModel(CompiledModel&&) noexcept;
  CompiledModel& operator=(CompiledModel&&) noexcept;
  ~CompiledModel();

  /// One step. Shapes: each input [combinedBatchSize, ...]: micro-batch k is rows [k*b, (k+1)*b). Results: see
  /// OutputMode.
  /// The results are the tensors of what forward returned, in order; constants among them follow the output mode too.
  /// Inputs of other shapes, types or strides get a compiled program of their own at the first call with them; weights,
  /// optimizer state and random numbers go on from the program that ran last. A loaded model has one program (E0704).
  /// The structures that the model is called with stay as they were at the first call, maps' keys and empty optionals
  /// too (E0704); forward takes the same (E0708).
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs);
  template <detail::Argument... Inputs>
    requires(sizeof...(Inputs) > 0)
  auto operator()(const Inputs&... inputs) {
    return runFlat(detail::flattened(inputs...));
  }
  /// One step, with the results as forward returns them: auto [out, loss] = model.call<std::pair<at::Tensor,
  /// at::Tensor>>(x, y). Throws E0708 when forward returns something else.
  template <class Result, detail::Argument... Inputs>
    requires(detail::IsStructure<Result>::value)
  Result call(const Inputs&... inputs) {
    std::string form;  // of these results: another thread may destroy() the model meanwhile
    const auto results = runFlat(flatArguments(inputs...), &form);
    return detail::structured<Result>(results, form);
  }

  /// Captures and compiles for inputs of these shapes without running a step; they are the current program's then.
  void compile(const std::vector<at::Tensor>& inputs);
  template <detail::Argument... Inputs>
    requires(sizeof...(Inputs) > 0)
  void compile(const Inputs&... inputs) {
    compileFlat(detail::flattened(inputs...));
  }
  /// compile(), then save(). A model whose connection type is Never can do this, on a machine without devices.
  void compileAndExport(const std::string& path, const std::vector<at::Tensor>& inputs);
  template <detail::Argument... Inputs>
    requires(sizeof...(Inputs) > 0)
  void compileAndExport(const std::string& path, const Inputs&... inputs) {
    if (!isCompiled()) compile(inputs...);
    save(path);
  }
  /// Takes over a program, its weights and its state from a file. Of this model's options those count that count for a
  /// loaded program (loadTrainingModel). Throws E0712; E0705 when compiled already.
  void loadExecutable(const std::string& path);
  bool isCompiled() const;
  /// The frozen copy that this model goes by.
  const Options& options() const;

  /// Into the module's tensors; what Options::shareWeights shares is there already. Of an InferenceModel: buffers that
  /// forward wrote are not copied back on their own.
  void copyWeightsToHost();
  /// Copies if the devices have newer weights, and returns whether they had.
  bool copyWeightsToHostIfNeeded();
  /// Uploads the module's tensors as they are now; progress of the device that was not copied back is lost. Shared
  /// parameters (Options::shareWeights) are what both sides have, and stay.
  void copyWeightsToDevice();
  /// Uploads only the buffers that Options::updatableNamedBuffers lists (E0702 where there are none).
  void copyNamedBuffersToDevice();
  /// Parameters and buffers by name, newest values. Where several processes hold stages all call it, and each gets all.
  /// Throws E0711 for a model on the meta device that no process has whole, E0705 before its tensors are read.
  std::map<std::string, at::Tensor> stateDict();
  /// Copies these values into the module, and uploads them. Throws E0708 for names or shapes that do not fit; then
  /// nothing is changed.
  void loadStateDict(const std::map<std::string, at::Tensor>& state);

  /// Models attach when they are compiled (ConnectionType::kOnDemand: at the first call), or at the first call after
  /// detachFromDevice().
  bool isAttachedToDevice() const;
  /// Uploads the weights. Throws E0705 when attached already, E0702 when the connection type is Never.
  void attachToDevice();
  /// Copies weights back. Throws E0705 when not attached.
  void detachFromDevice();

  /// State of the random stream, as bytes; setting it repeats the stream. Setting throws E0708 for other tensors.
  at::Tensor rngState() const;
  void setRngState(const at::Tensor& state);

  /// Long names of the values of the compiled program, as Options::anchorTensor takes them.
  const std::vector<std::string>& getTensorNames() const;
  /// Value, in the last call, of what Options::anchorTensor named. Throws E0708 for an unknown name.
  at::Tensor getAnchoredTensor(const std::string& short_name) const;
  ModelTimes getPerfCounters() const;
  /// From the first request of an input until all outputs are complete; the others are parts of it.
  Latency getLatency() const;
  Latency getHostIpuLatency() const;
  Latency getComputeLatency() const;
  Latency getIpuHostLatency() const;
  /// Cycles of the last call at 1.33 GHz: its time, in other units. Throws E0705 before the first call, E0702 without
  /// Options::logCycleCount.
  int64_t cycleCount() const;

  /// Table of the last step: each stage's busy and waiting time and peak bytes, the bubble, the compile time.
  std::string report() const;
  /// The same and more as a page for a browser, one file that needs no network: the last call as a timeline, with what
  /// the simulator predicts beside it; memory by class, layer and tensor; options; in words where the time goes, and
  /// what is predicted to help. Missing folders are made. Throws E0705 before compile, E0712.
  void report(const std::string& path);
  /// What the memory of the devices is for. Throws E0705 before compile, and for programs that were loaded or found in
  /// the cache.
  MemoryReport memoryReport() const;
  /// Times and memory of the stages as JSON, for simulate(): of the last step, or of capture before the first.
  std::string costs() const;
  /// The simulated step of this program under its own options, from costs(): also where it cannot run, as with
  /// Options::useOfflineIpuTarget. Throws E0705 before compile.
  Simulation simulate() const;
  /// Why the program is placed as it is, for people: its stages with their lines, predicted times and bytes, and what
  /// was predicted of other cuts, numbers of devices and schedules (docs/placement.md). Throws E0705 before compile,
  /// and for programs that were loaded or found in the cache.
  std::string explain() const;
  /// The current program as text: its graph after the passes; placement, schedule and memory; the executable. Throws
  /// E0705 before compile, the first two also for programs that were loaded or found in the cache.
  std::string graphText() const;
  std::string planText() const;
  std::string executableText() const;
  /// How many programs were compiled: one for each kind of inputs that the model was called with.
  int64_t numPrograms() const;
  /// The next `steps` calls go into this file: what each device did and what it waited for, micro-batch by micro-batch,
  /// the host's part, tracepoints, and what the simulator predicts beside it; ui.perfetto.dev opens it
  /// (docs/tracing.md). It is complete after these calls, at destroy() or at the end of this object. Throws E0708 for
  /// no calls, E0712 where the file cannot be made.
  void trace(const std::string& path, int64_t steps = 3);
  /// Writes the compiled program, the weights, the random state and, in training, the optimizer's state:
  /// loadTrainingModel or loadInferenceModel goes on from there, bit for bit. Missing folders are made; in a folder the
  /// file is model.poptorch. Where several processes hold stages all call it, and the first one writes; of a module on
  /// the meta device each writes what it has beside the file. Throws E0712 when the file cannot be written.
  void save(const std::string& path, const SaveOptions& what = {});
  /// Copies weights back and frees the devices. The model may be called again and then compiles again.
  void destroy();
  /// poll is called about every 50 ms during a step, on the calling thread; true stops the step with E0602. The model
  /// stays usable.
  void setInterrupt(std::function<bool()> poll);

 protected:
  friend class ModelAccess;
  class Core;
  class Call;
  explicit CompiledModel(std::unique_ptr<Core> core);
  /// E0705 where this was moved from.
  Core& core() const;
  /// Waits until it is this thread's turn. Throws E0608 within a call of the same model.
  Call enter() const;
  std::unique_ptr<Core> core_;

 private:
  friend Verification detail::verify(CompiledModel& model, const std::vector<detail::Flat>& batches);
  Verification verifyFlat(const std::vector<detail::Flat>& batches);
  static detail::Flat flatArguments(const std::vector<at::Tensor>& inputs);
  template <detail::Argument... Inputs>
    requires(sizeof...(Inputs) > 0)
  static detail::Flat flatArguments(const Inputs&... inputs) {
    return detail::flattened(inputs...);
  }
  /// form: of the results, if it is asked for.
  std::vector<at::Tensor> runFlat(const detail::Flat& inputs, std::string* form = nullptr);
  void compileFlat(const detail::Flat& inputs);
};

/// A program compiled for training. The first call captures, compiles and uploads the module's weights; each call then
/// runs deviceIterations weight updates on the devices. They work in the memory of the module's parameters where they
/// can (Options::shareWeights). Its other tensors change when weights are copied back: copyWeightsToHost(), destroy(),
/// the end of this object, or a call of an InferenceModel of the module or of one that shares submodules with it.
/// Requires: the module outlives this, unless it is owned by a std::shared_ptr. One live training model per module
/// (E0709). Throws: E01xx..E07xx; the module stays usable.
class ABELE_API TrainingModel : public CompiledModel {
 public:
  /// Gives groups of replicas values of their own of a parameter, with `shards` replicas in a group; before compile
  /// (E0705). The module's tensor has one more dimension in front than forward sees: a value for every group, or for
  /// every replica. Source: spec executor.md section 9.
  void replicaGrouping(const std::string& parameter, CommGroupType type, int64_t shards,
                       VariableRetrievalMode mode = VariableRetrievalMode::kOnePerGroup);
  /// The one that it trains with, to change a value of and give back: of a loaded program the one that it was compiled
  /// with. Its groups name their parameters then.
  const optim::Optimizer& optimizer() const;
  /// New values for the compiled optimizer, from the next step on. E0706 for what is fixed at compile.
  void setOptimizer(const optim::Optimizer& optimizer);
  /// Its numbers, as optim::fromTorch takes them: for schedulers of torch::optim, which change them.
  void setOptimizer(const torch::optim::Optimizer& optimizer);
  /// Copies of the optimizer's state on the devices: "exp_avg/encoder.weight".
  std::map<std::string, at::Tensor> optimizerState() const;
  /// Values that are missing keep what they are.
  void setOptimizerState(const std::map<std::string, at::Tensor>& state);
  /// What the next step's loss is multiplied by: the optimizer's loss_scaling times the factor that automatic loss
  /// scaling (Options::Training().setAutomaticLossScaling) has found. Throws E0705 before compilation.
  double lossScale() const;

 private:
  friend class ModelAccess;
  using CompiledModel::CompiledModel;
};

/// A program compiled for inference. Any number of them may share a module or submodules, also with live
/// training models: a call then first copies newer weights of the training devices to the module, and to its own
/// devices if they have changed. Requires, Throws: as TrainingModel.
class ABELE_API InferenceModel : public CompiledModel {
 private:
  friend class ModelAccess;
  using CompiledModel::CompiledModel;
};

/// model.explain().
ABELE_API std::string explain(const CompiledModel& model);
/// The page of a file that trace() or PVTI_OPTIONS wrote. Throws E0501 where it is no trace, E0712.
ABELE_API void writeReport(const std::string& path, const std::string& trace);

/// Called whenever a model of this process is about to be captured, and whenever that ended, also when it failed; in
/// the order of registration. Returns: what removeCompileHook takes. Threads: safe.
ABELE_API int64_t registerPreCompileHook(std::function<void()> hook);
ABELE_API int64_t registerPostCompileHook(std::function<void()> hook);
ABELE_API void removeCompileHook(int64_t handle);

/// True if so many devices exist: CPU devices stand for them, as many as ABELE_EMULATED_DEVICES says (default 64).
/// False when a simulator variable is set.
ABELE_API bool ipuHardwareIsAvailable(int64_t num_ipus = 1);
/// 2: programs written for this generation run. Throws E0402 when ABELE_EMULATED_DEVICES is 0.
ABELE_API int64_t ipuHardwareVersion();

/// What save() wrote, in C++ or in Python (export_model=True): it runs without a forward and without the module, and so
/// without Python. Weights come from the file. With a module, its tensors of the same names take them over and are the
/// model's from then on; without one the model owns them. The options are those of the file (savedOptions). Where some
/// are given, those count that a compiled program can still follow: results, devices, threads, caches, logs, seeds; the
/// column "Run time" of docs/options.md says which. The others stay the file's, and a warning names those that were
/// set. Which place the process has among others is always that of the given ones, or of its environment. Throws: E0712
/// when the file cannot be read, is of the other kind, or fits another module; E0501 when it is damaged; then the
/// module has what it had. E0705 at a call after destroy(): there is no forward to compile.
ABELE_API TrainingModel loadTrainingModel(const std::string& path);
ABELE_API TrainingModel loadTrainingModel(const std::string& path, const Options& options);
ABELE_API TrainingModel loadTrainingModel(const std::string& path, torch::nn::Module& module);
ABELE_API TrainingModel loadTrainingModel(const std::string& path, torch::nn::Module& module, const Options& options);
ABELE_API InferenceModel loadInferenceModel(const std::string& path);
ABELE_API InferenceModel loadInferenceModel(const std::string& path, const Options& options);
ABELE_API InferenceModel loadInferenceModel(const std::string& path, torch::nn::Module& module);
ABELE_API InferenceModel loadInferenceModel(const std::string& path, torch::nn::Module& module, const Options& options);
/// The options that the program of a file was compiled with, to change some of them for a load. A target without
/// devices (useOfflineIpuTarget) is left out. Throws E0712, E0501.
ABELE_API Options savedOptions(const std::string& path);

/// Moves a module's parameters and buffers into a file without a name, which is gone with the process: they take no
/// memory until somebody reads or writes them, and models take what they have copied to or from the devices out of
/// memory again. The tensors stay what they are; processes forked later share them.
/// folder: where the file is; empty: the system's temporary folder.   Throws: E0605; nothing is moved then.
ABELE_API void offload(torch::nn::Module& module, const std::string& folder = "");

/// The same as the templates below, for a forward that is wrapped already. module may be null for inference.
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

/// module: a torch::nn::Module, a pointer to one, or a holder (torch::nn::Linear); its parameters and buffers are the
/// weights. forward: any callable that takes and returns tensors, or structures of them and values (structure.h). One
/// whose parameters are not known (auto) takes up to 8 tensors. line: of the program, for messages; blocks and scopes
/// tell finer ones (annotate.h).
template <class Module, detail::NotOptions Fn>
TrainingModel trainingModel(Module&& module, Fn forward, const Options& options = {},
                            const optim::Optimizer& optimizer = optim::SGD{},
                            const std::source_location& line = std::source_location::current()) {
  return detail::makeTrainingModel(detail::moduleOf(module), detail::wrapForward(std::move(forward)), options,
                                   optimizer, line);
}
template <class Module, detail::NotOptions Fn>
InferenceModel inferenceModel(Module&& module, Fn forward, const Options& options = {},
                              const std::source_location& line = std::source_location::current()) {
  return detail::makeInferenceModel(&detail::moduleOf(module), detail::wrapForward(std::move(forward)), options, line);
}
/// The module's own forward. In training it returns the loss, and whatever else shall come back.
template <detail::ModuleLike Module>
TrainingModel trainingModel(Module&& module, const Options& options = {},
                            const optim::Optimizer& optimizer = optim::SGD{},
                            const std::source_location& line = std::source_location::current()) {
  auto& own = detail::moduleOf(module);
  return detail::makeTrainingModel(own, detail::wrapModule(own), options, optimizer, line);
}
/// The same with the groups and numbers of an optimizer of LibTorch (optim::fromTorch).
template <class Module, detail::NotOptions Fn>
TrainingModel trainingModel(Module&& module, Fn forward, const Options& options,
                            const torch::optim::Optimizer& optimizer,
                            const std::source_location& line = std::source_location::current()) {
  return trainingModel(module, std::move(forward), options, optim::fromTorch(optimizer, detail::moduleOf(module)),
                       line);
}
template <detail::ModuleLike Module>
TrainingModel trainingModel(Module&& module, const Options& options, const torch::optim::Optimizer& optimizer,
                            const std::source_location& line = std::source_location::current()) {
  return trainingModel(module, options, optim::fromTorch(optimizer, detail::moduleOf(module)), line);
}
template <detail::ModuleLike Module>
InferenceModel inferenceModel(Module&& module, const Options& options = {},
                              const std::source_location& line = std::source_location::current()) {
  auto& own = detail::moduleOf(module);
  return detail::makeInferenceModel(&own, detail::wrapModule(own), options, line);
}
/// A callable without weights of its own; tensors that it holds are constants.
template <detail::NotOptions Fn>
  requires(!detail::ModuleLike<Fn>)
InferenceModel inferenceModel(Fn forward, const Options& options = {},
                              const std::source_location& line = std::source_location::current()) {
  return detail::makeInferenceModel(nullptr, detail::wrapForward(std::move(forward)), options, line);
}

}  // namespace abele

// For users of the library: how a model runs. Names and defaults are PopTorch's. Next: model.h.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "abele/enums.h"
#include "abele/export.h"

namespace abele {

/// Blocks that form one stage, and the device that runs the stage (default: the stage's position in the list).
struct Stage {
  Stage(std::initializer_list<std::string> block_ids) : blocks(block_ids) {}
  Stage(const char* block_id) : blocks{block_id} {}
  /// Index among the model's devices. Returns *this, so that calls chain.
  Stage& ipu(int device) {
    device_index = device;
    return *this;
  }
  std::vector<std::string> blocks;
  int device_index = -1;
};

/// The order in which the stages of a pipeline run forwards and backwards in training (docs/schedules.md). k1F1B: a
/// backward runs as soon as it can. kGPipe: all forwards of an update run first. kInterleaved: 1F1B over several stages
/// per device, with stage s on device s mod devices. kZeroBubble: weight gradients wait until a device would idle, in
/// at most the memory of 1F1B; kZeroBubble2: in at most twice that memory. kAuto: the schedule among these with the
/// shortest predicted step. kDefault: k1F1B, or a schedule that is predicted to be noticeably faster and needs no more
/// memory than 1F1B or Options::deviceMemoryLimit.
enum class Schedule { k1F1B, kGPipe, kInterleaved, kZeroBubble, kZeroBubble2, kAuto, kDefault };

/// Stages that run at the same time in phased execution.
struct ABELE_API Phase {
  Phase(std::initializer_list<Stage> list) : stages(list) {}
  Phase(const char* block_id) : stages{block_id} {}
  /// One device per stage, in order.
  Phase& ipus(const std::vector<int>& devices);
  std::vector<Stage> stages;
};

/// How the stages of a model run. Results never depend on it. Use one of the strategies below.
struct ABELE_API ExecutionStrategy {
  /// The stage that lists this block. Throws E0305 if no stage lists it.
  const Stage& stage(const std::string& block_id) const;
  /// The phase at this position. Throws E0702 if the position is out of range.
  Phase phase(int index) const;

  bool pipelined = true;
  bool alternating = false;   // parallel phased
  std::vector<int> phase_of;  // by stage; empty: no phases
  AutoStage auto_stage = AutoStage::kSameAsIpu;
  std::vector<Stage> stages;  // empty: auto_stage makes them
  int split_devices = 0;      // kAutoSplit: number of devices; 0: number of cores; kMeasuredDevices (placement.h)
  Schedule pipeline_schedule = Schedule::kDefault;
  std::string stage_costs;  // JSON; empty: estimated
  bool recomputes = false;
  bool recomputes_to_fit = false;
  bool separate_backward_phase = false;               // a hint
  Liveness tensors_liveness = Liveness::kAlwaysLive;  // for phases
};

/// Micro-batches overlap: while stage 1 works on one, stage 0 works on the next. The default.
struct PipelinedExecution : ExecutionStrategy {
  PipelinedExecution(AutoStage rule = AutoStage::kSameAsIpu) { auto_stage = rule; }
  PipelinedExecution(std::initializer_list<Stage> list) { stages = list; }
  /// Returns *this, so that calls chain.
  PipelinedExecution& schedule(Schedule order) {
    pipeline_schedule = order;
    return *this;
  }
  /// Measured times of the stages, for schedules that order their work by time (kZeroBubble, kZeroBubble2). json: from
  /// TrainingModel::costs() of a program with the same stages. Without it times are estimated from shapes, so that
  /// equal programs get equal executables. Compiling throws E0404 if json cannot be read or has another number of
  /// stages.
  PipelinedExecution& costs(std::string json) {
    stage_costs = std::move(json);
    return *this;
  }
  /// Backward computes the values of its stage's forward again instead of keeping them: the same bits in less memory.
  /// Only a stage's inputs, values that other stages read, and tensors marked by recomputationCheckpoint() are kept.
  PipelinedExecution& recompute(bool use = true) {
    recomputes = use;
    recomputes_to_fit = false;
    return *this;
  }
  /// "fit": recomputes only as much as every device needs to fit Options::deviceMemoryLimit, with the least extra time
  /// that a search finds; recomputes nothing if the program fits without it. Throws E0702 for other words.
  ABELE_API PipelinedExecution& recompute(const char* how);
};

/// A pipeline without annotations: cuts the program into this many stages, one per device, for the shortest predicted
/// step. 0: the number of cores. E0406 if the program has fewer pieces. Source: ours.
ABELE_API PipelinedExecution autoSplit(int devices = 0);

/// One stage works at a time.
struct ShardedExecution : ExecutionStrategy {
  ShardedExecution(AutoStage rule = AutoStage::kSameAsIpu) {
    pipelined = false;
    auto_stage = rule;
  }
  ShardedExecution(std::initializer_list<Stage> list) {
    pipelined = false;
    stages = list;
  }
};

/// Phases one after another on one group of devices. Backward runs them in the opposite order.
struct ABELE_API SerialPhasedExecution : ExecutionStrategy {
  SerialPhasedExecution(std::initializer_list<Phase> phases);
  /// Chooses where activations are between phases. Weights, optimizer state and accumulators are then off chip.
  SerialPhasedExecution& setTensorsLiveness(Liveness liveness) {
    tensors_liveness = liveness;
    return *this;
  }
  /// Forward and backward do not share the middle phase; a hint.
  SerialPhasedExecution& useSeparateBackwardPhase(bool use = true) {
    separate_backward_phase = use;
    return *this;
  }
};

/// Phases one after another that alternate between two groups of devices: even phases on even devices.
struct ABELE_API ParallelPhasedExecution : ExecutionStrategy {
  ParallelPhasedExecution(std::initializer_list<Phase> phases);
  /// Activations leave the device between forward and backward.
  ParallelPhasedExecution& sendTensorsOffChipAfterFwd(bool off_chip = true) {
    tensors_liveness = off_chip ? Liveness::kOffChipAfterFwd : Liveness::kAlwaysLive;
    return *this;
  }
  /// Forward and backward do not share the middle phase; a hint.
  ParallelPhasedExecution& useSeparateBackwardPhase(bool use = true) {
    separate_backward_phase = use;
    return *this;
  }
};

class Options;
class TrainingOptions;
class PrecisionOptions;
class JitOptions;
class PopartOptions;
class DistributedOptions;
class TensorLocationOptions;

/// The value of an expert setting.
using Setting = std::variant<bool, int64_t, double, std::string, std::vector<std::string>, std::vector<int64_t>,
                             std::map<std::string, std::string>, std::map<std::string, bool>>;

/// A request for the placement of one class of tensors; starts empty. Never changes results (docs/phases.md).
class ABELE_API TensorLocationSettings {
 public:
  // <generated TensorLocationSettings>
  /// Smallest tensor that leaves the device. Allowed: >= 0. Unit: elements.
  TensorLocationSettings& minElementsForOffChip(int64_t min_elements);
  /// Smallest tensor that is sharded; default 8192. Allowed: >= 0. Unit: elements. Device: applies to weights and
  /// optimizer state; a hint for other tensors.
  TensorLocationSettings& minElementsForReplicatedTensorSharding(int64_t min_elements);
  /// Keep the tensors on the device; None removes the setting.
  TensorLocationSettings& useOnChipStorage(std::optional<bool> use = true);
  /// Distribute the tensors over the replicas: each tensor is in the memory of one replica, which runs its updates
  /// (docs/replicas.md). Every replica keeps its own activations and gradient sums. Device: applies to weights and
  /// optimizer state; a hint for other tensors.
  TensorLocationSettings& useReplicatedTensorSharding(bool use = true);
  /// Load tensors through the input and output tiles. Device: hint.
  TensorLocationSettings& useIOTilesToLoad(bool use = true);
  /// Store tensors through the input and output tiles. Device: hint.
  TensorLocationSettings& useIOTilesToStore(bool use = true);

  // Values, under the names that Python reads them by; empty where none was given.
  std::optional<int64_t> minElementsForOffChip() const;
  std::optional<int64_t> minElementsForReplicatedTensorSharding() const;
  std::optional<bool> onChip() const;
  std::optional<bool> useReplicatedTensorSharding() const;
  std::optional<bool> useIOTilesToLoad() const;
  std::optional<bool> useIOTilesToStore() const;
  // </generated>

  /// All settings by key.
  const std::map<std::string, int64_t>& values() const { return values_; }

 private:
  friend struct OptionsAccess;
  std::map<std::string, int64_t> values_;
};

/// All settings of a model, under PopTorch's names. Setters return *this, so that calls chain, and throw E0702 for a
/// value out of range. A model or DataLoader takes a copy and freezes the original: setters of frozen options throw
/// E0707. A copy of frozen options is not frozen. A new object starts from the defaults and then takes
/// POPTORCH_CACHE_DIR, POPTORCH_DEFAULT_OPTIONS (JSON, see fromJson) and the rank of the process from OpenMPI.
/// docs/options.md lists all settings in one table. A hint is recorded and has no effect. Threads: compatible.
class ABELE_API Options {
 public:
  Options();
  Options(const Options& other);
  Options& operator=(const Options& other);
  ~Options();

  // <generated Options>
  /// Optimizer steps (training) or micro-batches (inference) that one call runs before it returns. Multiplies the batch
  /// dimension of inputs and results. Allowed: >= 1. Unit: iterations.
  Options& deviceIterations(int64_t device_iterations);
  /// Data-parallel copies of the model in this process. Gradients are reduced over all of them. Allowed: >= 1. Unit:
  /// replicas.
  Options& replicationFactor(int64_t replication_factor);
  /// Replicas of one group receive the same slice of the inputs. NoGrouping means (1, Consecutive). Call
  /// replicationFactor first. Allowed: divides the replication factor. Unit: replicas.
  Options& inputReplicaGrouping(int64_t input_group_size, CommGroupType input_group_type = CommGroupType::kConsecutive);
  /// False gives every replica its own copy of the buffers that forward writes. Running statistics of normalisations
  /// are always the replica's own.
  Options& broadcastBuffers(bool broadcast_buffers = true);
  /// Lets forward read any tensor (.item(), a branch, numpy()), for models that check their inputs. The program keeps
  /// the value from compile time. Every step checks that the value is still the same, and throws E0101 if it is not.
  /// Without this option the same holds for all(), any(), and values that follow from integer or boolean arguments or
  /// from buffers that forward does not write; other reads are refused at compile time.
  Options& trustReads(bool trust_reads = true);
  /// How blocks become stages or phases.
  Options& setExecutionStrategy(const ExecutionStrategy& strategy);
  /// Share of each device's memory that temporary tensors may use: {"IPU0": 0.3}. Returns None. Allowed: keys "IPU<n>",
  /// values 0..1. Unit: share. Device: hint.
  Options& setAvailableMemoryProportion(const std::map<std::string, double>& available_memory_proportion);
  /// Which micro-batch results a call returns. EveryN needs a period. Allowed: OutputMode.
  Options& outputMode(OutputMode output_mode, std::optional<int64_t> output_return_period = {});
  /// Record the value of an inner tensor in each call. Returns None.
  Options& anchorTensor(const std::string& short_name, const std::string& long_name,
                        std::optional<OutputMode> output_mode = {}, int64_t output_return_period = 1);
  /// Which instructions are joined to save passes over memory. exact: only if every bit of the results stays the same,
  /// such as an operator that adds its gradient to the sum. fast: also if sums have another order than in eager
  /// PyTorch, and Abele's own functions (GELU); results differ by rounding. off: none. Allowed: exact, fast, off.
  Options& fusion(const std::string& level);
  /// Round the number of devices up to a power of two instead of refusing the model.
  Options& autoRoundNumIPUs(bool auto_round_num_ipus = true);
  /// Use a model of the device. Overrides POPTORCH_IPU_MODEL. Device: results are the same; time and memory are not
  /// modelled yet.
  Options& useIpuModel(bool use_model);
  /// Use this device. Allowed: >= 0. Device: hint.
  Options& useIpuId(int64_t ipu_id);
  /// Compile without a device. Sets the connection type to Never. A call that runs the program is an error. Allowed: 1,
  /// 2, 21.
  Options& useOfflineIpuTarget(int64_t ipu_version = 2);
  /// When the executor attaches to its devices. Allowed: ConnectionType.
  Options& connectionType(ConnectionType connection_type);
  /// Synchronisation between devices. Allowed: SyncPattern. Device: hint.
  Options& syncPattern(SyncPattern sync_pattern);
  /// Number of bytes that a device has. A program that needs more is refused when it is compiled (E0405). The bytes are
  /// those that the plan places on a device (docs/memory.md): weights, optimizer state, gradient sums, constants,
  /// activations and values inside a task. PipelinedExecution.recompute("fit") recomputes values to stay below the
  /// limit. Devices that a map leaves out have no limit. Allowed: >= 0; {"IPU0": bytes} for some devices. Unit: bytes.
  Options& deviceMemoryLimit(int64_t limit_bytes);
  /// Host memory for tensors that are off chip. Tensors beyond the limit are in a file. Without a limit all of them are
  /// in host memory (docs/phases.md). Allowed: >= 0. Unit: bytes.
  Options& offChipMemoryLimit(int64_t limit_bytes);
  /// Folder of the file for tensors that are off chip; by default the system's temporary folder. The file disappears
  /// when the process ends, even after a crash. A folder in a file system in memory (tmpfs) saves no memory. A folder
  /// that cannot be written is refused when the model is compiled (E0605). Allowed: a folder that can be written.
  Options& offChipFolder(const std::string& path);
  /// Seed of the device's random numbers and of torch (torch.manual_seed).
  Options& randomSeed(uint64_t random_seed);
  /// Folder of log files. Device: hint.
  Options& logDir(const std::string& log_dir);
  /// Largest number of times that the same log line is repeated; None: no limit. Allowed: >= 0. Unit: lines.
  Options& maxRepeatLogs(std::optional<int64_t> max_lines);
  /// Name used in reports.
  Options& modelName(const std::string& name);
  /// Keep compiled executables in this folder; None switches this off.
  Options& enableExecutableCaching(std::optional<std::string> path);
  /// More accurate variance in normalisations. Device: hint: torch's own kernels are used.
  Options& enableStableNorm(bool enabled);
  /// Run without input from and output to the host; the device generates the data.
  Options& enableSyntheticData(bool enabled);
  /// Count device cycles of each run.
  Options& logCycleCount(bool log_cycle_count);
  /// Write a profile of each run into a folder. Device: docs/tracing.md.
  Options& enableProfiling(std::optional<std::string> profile_dir = {});
  /// Leave the module path out of operation names.
  Options& disableModuleNamescope();
  /// Buffers that copyNamedBuffersToDevice uploads.
  Options& updatableNamedBuffers(const std::vector<std::string>& buffers);
  /// Log messages about unexpected optimizer attributes at level DEBUG.
  Options& relaxOptimizerAttributesChecks(bool relax = true);
  /// Show a bar while compiling.
  Options& showCompilationProgressBar(bool show = true);
  /// Stack frames are not user code if their file name contains one of these texts. Replaces the list.
  Options& sourceLocationExcludes(const std::vector<std::string>& excludes);
  /// Adds texts to the list of sourceLocationExcludes.
  Options& appendToLocationExcludes(const std::vector<std::string>& excludes);
  /// Number of devices; 0, the default: as many as the model needs. A model that needs more is refused (E0402).
  /// Allowed: >= 0. Unit: devices.
  Options& devices(int64_t count);
  /// Divides the work of each device of the model among this many devices; the bits are those of one device. 1, the
  /// default: no division. Device v becomes devices v * n to v * n + n - 1 (docs/tensor_parallel.md). Allowed: >= 1.
  /// Unit: devices.
  Options& tensorParallel(int64_t devices);
  /// Deals the micro-batches of a call to this many devices in turn, for each device of the model. They share weights
  /// and gradient sums, and add to the sums in the order of the micro-batches, so the bits are those of one device. 1,
  /// the default: one device takes them all. Device v becomes devices v * n to v * n + n - 1 (docs/data_parallel.md).
  /// Allowed: >= 1. Unit: devices.
  Options& dataParallel(int64_t devices);
  /// Refuse pipelines with fewer micro-batches than PopTorch requires: gradientAccumulation >= 2 * stages - 1 in
  /// training, deviceIterations >= stages in inference (E0401). Off: they run, and devices wait longer. Default: on in
  /// poptorch; off in abele and in C++.
  Options& enforcePipelineMinimum(bool enforce = true);
  /// The devices work in the memory of the model's own parameters if they can, and not on copies. Each weight then
  /// exists once, and each side sees at once what the other writes. Off: weights are only copied between model and
  /// devices (spec executor.md section 6). Default: on in abele and in C++; off in poptorch.
  Options& shareWeights(bool share = true);
  /// Captures forward a second time on the same inputs and random numbers, and compares the two programs, constants
  /// included. They are equal if forward keeps state only in buffers and draws random numbers only from torch. The
  /// second capture takes at most as long as the first. Default: on in abele and in C++, where a difference raises
  /// E0101; off in poptorch, where a difference is a warning if this is on.
  Options& checkCapture(bool check = true);
  /// A model compiles a program for each kind of arguments, and each program takes memory. If a model has more programs
  /// than this, a warning names the argument that changes. Allowed: >= 1. Unit: programs.
  Options& recompileLimit(int64_t programs);
  /// Intra-op threads of each device; 0, the default: the devices share torch's number of threads equally. Allowed: >=
  /// 0. Unit: threads.
  Options& threadsPerDevice(int64_t threads);
  /// Hardware of the model's devices: a worker on the CPU, or a stream of an accelerator. Device n gets entry n of a
  /// list; if there are more devices than entries, the list repeats (docs/devices.md). Default: ABELE_DEVICE, or cpu if
  /// that is not set. Hardware that the machine does not have is refused (E0702). Allowed: cpu; accelerators of torch:
  /// cuda (all of them), cuda:1, xpu; a list of these: cuda:0,cuda:1,cpu.
  Options& deviceType(const std::string& device);
  /// Accelerators capture the kernels that their workers enqueue as a device graph, and replay the graph from the third
  /// time on. This saves host time and gives the same numbers. It needs a torch with device graphs (2.13 or newer).
  /// Off, the default: the workers enqueue each kernel each time (docs/devices.md).
  Options& deviceGraphs(bool replay = true);
  /// Every device has its own memory, and transfers copy values from other devices into it, as between accelerators
  /// (docs/transfers.md). Results are the same. For tests, and to see the memory that a placement would need on such
  /// devices. Default: off.
  Options& separateMemory(bool separate = true);

  // Values, under the names that Python reads them by; empty where none was given.
  int64_t device_iterations() const;
  int64_t replication_factor() const;
  int64_t input_group_size() const;
  bool broadcast_buffers() const;
  bool trust_reads() const;
  OutputMode output_mode() const;
  std::string fusion_level() const;
  bool auto_round_num_ipus() const;
  std::optional<bool> use_model() const;
  std::optional<int64_t> ipu_id() const;
  std::optional<int64_t> ipu_version() const;
  ConnectionType connection_type() const;
  SyncPattern sync_pattern() const;
  std::optional<int64_t> device_memory_limit() const;
  std::optional<int64_t> off_chip_memory_limit() const;
  std::optional<std::string> off_chip_folder() const;
  std::optional<uint64_t> random_seed() const;
  std::string log_dir() const;
  int64_t max_repeat_logs() const;
  std::optional<std::string> model_name() const;
  bool module_namescope_enabled() const;
  bool relax_optimizer_checks() const;
  bool show_compilation_progress_bar() const;
  std::optional<int64_t> num_devices() const;
  std::optional<int64_t> tensor_parallel() const;
  std::optional<int64_t> data_parallel() const;
  std::optional<bool> enforce_pipeline_minimum() const;
  std::optional<bool> share_weights() const;
  std::optional<bool> check_capture() const;
  int64_t recompile_limit() const;
  std::optional<int64_t> threads_per_device() const;
  std::optional<std::string> device_type() const;
  std::optional<bool> device_graphs() const;
  std::optional<bool> separate_memory() const;
  CommGroupType input_cgt() const;
  int64_t output_return_period() const;
  // </generated>

  // Groups are views: the Options must outlive them.
  /// Options for training only.
  TrainingOptions Training() const;
  /// Half precision and floating-point exceptions.
  PrecisionOptions Precision() const;
  /// Deprecated settings of the tracer.
  JitOptions Jit() const;
  /// Expert settings, checked when a model is compiled; Python's opts._Popart.
  PopartOptions Popart() const;
  /// Several processes.
  DistributedOptions Distributed() const;
  /// Placement of tensor classes.
  TensorLocationOptions TensorLocations() const;

  /// Memory limits of some devices: {{"IPU0", bytes}}. Other devices have no limit. Replaces an earlier limit for every
  /// device; a later one replaces these limits. Throws E0702 for other names and for bytes below 0.
  Options& deviceMemoryLimit(const std::map<std::string, int64_t>& limit_bytes);
  /// Empty if no limit was given, or one limit for every device.
  std::map<std::string, int64_t> device_memory_limits() const;

  /// True if no output mode was chosen.
  bool defaultOutputMode() const;
  /// Rows that one call takes if a micro-batch has batch_size rows: batch_size * deviceIterations *
  /// gradientAccumulation * replicationFactor / input group size. Source: spec data.md section 1.
  int64_t combinedBatchSize(int64_t batch_size) const;
  int64_t deviceIterations() const;
  int64_t gradientAccumulation() const;
  int64_t replicationFactor() const;

  /// Applies a file of setter calls, one per line, as PopTorch reads it: "deviceIterations(4)",
  /// "outputMode(poptorch.OutputMode.All)", "Training.gradientAccumulation(8)  # comment". Arguments are literals,
  /// members of enumerations, strategies and TensorLocationSettings. If a line does not parse, throws E0702 with its
  /// number and applies nothing. Throws E0712 if the file cannot be read, and any error of the setters.
  Options& loadFromFile(const std::string& path);
  /// Applies a JSON object {"dotted.setter": arguments}. A list gives several arguments. Throws E0701, E0702.
  Options& fromJson(const std::string& text);
  /// Returns JSON that fromJson reads back. Leaves out values that equal their defaults.
  std::string toJson() const;
  /// All values as text. Equal options give equal text.
  std::string str() const;
  /// From now on setters throw E0707.
  void freeze() const;
  bool isFrozen() const;

  struct Values;  // in options/store.h

 private:
  friend struct OptionsAccess;
  std::unique_ptr<Values> values_;
};

/// Options for training only. A view of an Options, which must outlive it.
class ABELE_API TrainingOptions {
 public:
  // <generated Training>
  /// Micro-batches per weight update. Must be 1 for inference. Allowed: >= 1. Unit: micro-batches.
  TrainingOptions& gradientAccumulation(int64_t gradient_accumulation);
  /// Gradients are the mean or the sum over accumulation steps and replicas. Allowed: Mean, Sum.
  TrainingOptions& accumulationAndReplicationReductionType(ReductionType reduction_type);
  /// When a mean reduction divides. Allowed: MeanReductionStrategy. Device: hint.
  TrainingOptions& setMeanAccumulationAndReplicationReductionStrategy(MeanReductionStrategy mean_reduction_strategy);
  /// Adapt the loss scale so that gradients stay in the range of float16. Device: yes; between calls.
  TrainingOptions& setAutomaticLossScaling(bool enabled);
  /// Vary the layout of convolutions. Device: hint.
  TrainingOptions& setConvolutionDithering(bool enabled);

  // Values, under the names that Python reads them by; empty where none was given.
  int64_t gradient_accumulation() const;
  ReductionType accumulation_and_replication_reduction_type() const;
  MeanReductionStrategy meanAccumulationAndReplicationReductionStrategy() const;
  // </generated>

 private:
  friend class Options;
  explicit TrainingOptions(Options::Values* values) : values_(values) {}
  Options::Values* values_;
};

/// Half precision and floating-point exceptions. A view of an Options, which must outlive it.
class ABELE_API PrecisionOptions {
 public:
  // <generated Precision>
  /// Raise an error at a division by zero, an overflow or a NaN.
  PrecisionOptions& enableFloatingPointExceptions(bool enabled);
  /// Round float16 results randomly, without bias.
  PrecisionOptions& enableStochasticRounding(bool enabled);
  /// Accumulation type inside matrix products and convolutions. Allowed: torch.float, torch.half. Device: hint.
  PrecisionOptions& setPartialsType(FloatType dtype);
  /// Deprecated; ignored with a warning. Device: hint.
  PrecisionOptions& halfFloatCasting(HalfFloatCastingBehavior half_float_casting);
  /// Deprecated; ignored with a warning. Device: hint.
  PrecisionOptions& runningStatisticsAlwaysFloat(bool value);
  // </generated>

 private:
  friend class Options;
  explicit PrecisionOptions(Options::Values* values) : values_(values) {}
  Options::Values* values_;
};

/// Deprecated. A view of an Options, which must outlive it.
class ABELE_API JitOptions {
 public:
  // <generated Jit>
  /// Deprecated; only False is accepted. Device: hint.
  JitOptions& traceModel(bool trace_model);
  // </generated>

 private:
  friend class Options;
  explicit JitOptions(Options::Values* values) : values_(values) {}
  Options::Values* values_;
};

/// Expert settings of PopTorch's backend. Compiling checks their names and values (E0701, E0702). A view of an Options,
/// which must outlive it.
class ABELE_API PopartOptions {
 public:
  // <generated _Popart>
  /// Stores an expert setting. Compiling checks its name and type.
  PopartOptions& set(const std::string& key, const Setting& value);
  /// Options of the original engine. Device: hint.
  PopartOptions& setEngineOptions(const std::map<std::string, std::string>& engine_options);
  /// Switches optimisations of the original compiler. Device: hint.
  PopartOptions& setPatterns(const std::map<std::string, bool>& patterns, int64_t level = 2);
  // </generated>

  /// Returns nothing if the setting has no value.
  std::optional<Setting> get(const std::string& name) const;

 private:
  friend class Options;
  explicit PopartOptions(Options::Values* values) : values_(values) {}
  Options::Values* values_;
};

/// Options for several processes. A view of an Options, which must outlive it.
class ABELE_API DistributedOptions {
 public:
  // <generated Distributed>
  /// Index and number of processes. Allowed: 0 <= process_id < num_processes.
  DistributedOptions& configureProcessId(int64_t process_id, int64_t num_processes);
  /// Number of devices that each process owns. A replica with more devices spans consecutive processes, and all of them
  /// are called with the same batch (docs/transfers.md). replicationFactor then counts the replicas of all processes.
  /// 0: every process has whole replicas. Allowed: >= 0. Unit: devices.
  DistributedOptions& devicesPerProcess(int64_t devices);
  /// Number of consecutive processes that hold the stages of a replica together. Replicas that share these processes
  /// have the same stages in each of them. Needs devicesPerProcess. 0: the smallest number that the numbers of
  /// processes and replicas allow (docs/transfers.md). Allowed: >= 0. Unit: processes.
  DistributedOptions& processesPerReplica(int64_t processes);
  /// Which processes of a replica get the results of a call, including losses and anchored tensors. all: every process.
  /// first, last: that one only. owner: each result is in the process whose stage makes it. In other processes a result
  /// is None, as on other ranks of torch.distributed.pipelining (C++: an undefined tensor), and no data is sent for it.
  /// All processes must choose the same (E0713). Arguments that forward writes are equal in all processes
  /// (docs/transfers.md). Allowed: all, first, last, owner.
  DistributedOptions& outputRank(const std::string& rank);
  /// Environment variables that hold the number of processes and the index. Unit: processes.
  DistributedOptions& setEnvVarNames(const std::string& var_num_processes, const std::string& var_process_id);
  /// Return to a single process. Returns None.
  DistributedOptions& disable();

  // Values, under the names that Python reads them by; empty where none was given.
  int64_t distributed_process_id() const;
  int64_t devices_per_process() const;
  int64_t processes_per_replica() const;
  std::string output_rank() const;
  int64_t num_distributed_processes() const;
  // </generated>

 private:
  friend class Options;
  explicit DistributedOptions(Options::Values* values) : values_(values) {}
  Options::Values* values_;
};

/// Placement of tensor classes. A view of an Options, which must outlive it.
class ABELE_API TensorLocationOptions {
 public:
  // <generated TensorLocations>
  /// Tiles reserved for input and output. Allowed: even, 32..192. Unit: tiles. Device: hint.
  TensorLocationOptions& numIOTiles(int64_t num_tiles);
  /// Placement of activations.
  TensorLocationOptions& setActivationLocation(const TensorLocationSettings& location);
  /// Placement of weights.
  TensorLocationOptions& setWeightLocation(const TensorLocationSettings& location);
  /// Placement of optimizer state.
  TensorLocationOptions& setOptimizerLocation(const TensorLocationSettings& location);
  /// Placement of gradient accumulators.
  TensorLocationOptions& setAccumulatorLocation(const TensorLocationSettings& location);

  // Values, under the names that Python reads them by; empty where none was given.
  std::optional<int64_t> num_io_tiles() const;
  // </generated>

 private:
  friend class Options;
  explicit TensorLocationOptions(Options::Values* values) : values_(values) {}
  Options::Values* values_;
};

/// Sets the level of log messages: "TRACE", "DEBUG", "INFO", "WARN", "ERR" or "OFF" (E0702). Before the first call the
/// environment variables POPTORCH_LOG_LEVEL (WARN by default) and POPTORCH_LOG_DEST (stderr) apply:
/// docs/environment.md.
/// Threads: safe.
ABELE_API void setLogLevel(const std::string& level);

}  // namespace abele

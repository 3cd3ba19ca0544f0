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

/// Blocks that form one stage, and the device that it runs on (default: its position in the list).
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

/// The order in which the stages of a pipeline do their forwards and backwards in training (docs/schedules.md). k1F1B:
/// a backward runs as soon as it can. kGPipe: all forwards of an update first. kInterleaved: 1F1B over several stages a
/// device, stage s on device s mod devices. kZeroBubble: weight gradients wait until a device would idle, in at most
/// the memory of 1F1B; kZeroBubble2: in twice as much. kAuto: the one of these that
/// is predicted to be fastest. kDefault: k1F1B, or one that is predicted to be noticeably faster in no more memory, or
/// within Options::deviceMemoryLimit.
enum class Schedule { k1F1B, kGPipe, kInterleaved, kZeroBubble, kZeroBubble2, kAuto, kDefault };

/// Stages that run at the same time in phased execution.
struct ABELE_API Phase {
  Phase(std::initializer_list<Stage> list) : stages(list) {}
  Phase(const char* block_id) : stages{block_id} {}
  /// One device a stage, in order.
  Phase& ipus(const std::vector<int>& devices);
  std::vector<Stage> stages;
};

/// How the stages of a model run. Results never depend on it. Use one of those below.
struct ABELE_API ExecutionStrategy {
  /// The stage that lists this block. Throws E0305 when there is none.
  const Stage& stage(const std::string& block_id) const;
  /// The phase at this position. Throws E0702 when there is none.
  Phase phase(int index) const;

  bool pipelined = true;
  bool alternating = false;   // parallel phased
  std::vector<int> phase_of;  // by stage; empty: no phases
  AutoStage auto_stage = AutoStage::kSameAsIpu;
  std::vector<Stage> stages;  // empty: as auto_stage says
  int split_devices = 0;      // kAutoSplit: 0 for as many as there are cores; kMeasuredDevices (placement.h)
  Schedule pipeline_schedule = Schedule::kDefault;
  std::string stage_costs;  // JSON; empty: estimated
  bool recomputes = false;
  bool recomputes_to_fit = false;
  bool separate_backward_phase = false;               // a hint
  Liveness tensors_liveness = Liveness::kAlwaysLive;  // of phases
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
  /// Measured times of the stages, for schedules that order their work by time (kZeroBubble, kZeroBubble2): what
  /// TrainingModel::costs() of the same stages returned. Without: estimated from shapes, so that equal programs get
  /// equal executables. Compiling throws E0404 for what cannot be read or has another number of stages.
  PipelinedExecution& costs(std::string json) {
    stage_costs = std::move(json);
    return *this;
  }
  /// Backward computes the values of its stage's forward again instead of keeping them: the same bits in less memory.
  /// Kept: a stage's inputs, values that other stages read, tensors that recomputationCheckpoint() names.
  PipelinedExecution& recompute(bool use = true) {
    recomputes = use;
    recomputes_to_fit = false;
    return *this;
  }
  /// "fit": only as much as needed for every device to fit Options::deviceMemoryLimit, in the least extra time that
  /// is found; nothing if everything fits. Throws E0702 for other words.
  ABELE_API PipelinedExecution& recompute(const char* how);
};

/// A pipeline without annotations: the program is cut into this many stages, one per device (0: as many as there are
/// cores; E0406 if the program has fewer pieces), with the shortest predicted step. Source: ours.
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
  /// Where tensors live between phases: weights, state and accumulators are off chip, activations as this says.
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

/// A placement request for one class of tensors; starts empty. Never changes results (docs/phases.md).
class ABELE_API TensorLocationSettings {
 public:
  // <generated TensorLocationSettings>
  /// Smallest tensor that leaves the device. Allowed: >= 0. Unit: elements.
  TensorLocationSettings& minElementsForOffChip(int64_t min_elements);
  /// Smallest tensor that is sharded; default 8192. Allowed: >= 0. Unit: elements. Device: weights and optimizer state;
  /// else a hint.
  TensorLocationSettings& minElementsForReplicatedTensorSharding(int64_t min_elements);
  /// Keep on the device; None removes the setting.
  TensorLocationSettings& useOnChipStorage(std::optional<bool> use = true);
  /// Deal the tensors to the replicas: each is in one replica's memory, which runs its updates (docs/replicas.md).
  /// Activations and gradient sums stay every replica's own. Device: weights and optimizer state; else a hint.
  TensorLocationSettings& useReplicatedTensorSharding(bool use = true);
  /// Load through input and output tiles. Device: hint.
  TensorLocationSettings& useIOTilesToLoad(bool use = true);
  /// Store through input and output tiles. Device: hint.
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

/// All settings of a model, named as PopTorch names them. Setters return *this, so that calls chain, and throw E0702
/// for a value outside of its range. A model or DataLoader takes a copy and freezes the original: a setter of frozen
/// options throws E0707; a copy of them is not frozen. A new object starts from the defaults, then takes
/// POPTORCH_CACHE_DIR, POPTORCH_DEFAULT_OPTIONS (JSON, see fromJson) and the process's place as OpenMPI says it.
/// docs/options.md has all settings in one table; a hint is recorded and steers nothing. Threads: compatible.
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
  /// False lets every replica own the buffers that forward writes. Running statistics of normalisations are always its
  /// own.
  Options& broadcastBuffers(bool broadcast_buffers = true);
  /// What forward reads of tensors (.item(), a branch, numpy()) stays what it was at compile time, and every step
  /// checks that it still is: E0101 where it is not. For models that check their inputs. Without it this holds for
  /// all(), any() and what follows from integer or boolean arguments and from buffers that forward does not write;
  /// other reads are refused at compile time.
  Options& trustReads(bool trust_reads = true);
  /// How blocks become stages or phases.
  Options& setExecutionStrategy(const ExecutionStrategy& strategy);
  /// Share of each device's memory that temporaries may use: {"IPU0": 0.3}. Returns None. Allowed: keys "IPU<n>",
  /// values 0..1. Unit: share. Device: hint.
  Options& setAvailableMemoryProportion(const std::map<std::string, double>& available_memory_proportion);
  /// Which micro-batch results a call returns. EveryN needs a period. Allowed: OutputMode.
  Options& outputMode(OutputMode output_mode, std::optional<int64_t> output_return_period = {});
  /// Observe an inner tensor. Returns None.
  Options& anchorTensor(const std::string& short_name, const std::string& long_name,
                        std::optional<OutputMode> output_mode = {}, int64_t output_return_period = 1);
  /// Which instructions are joined to save passes over memory. exact: those whose results keep every bit: gradients are
  /// added up by the operators that make them. fast: also sums in another order than eager PyTorch's and functions of
  /// our own (GELU); results differ by rounding. off: none. Allowed: exact, fast, off.
  Options& fusion(const std::string& level);
  /// Round the number of devices up to a power of two instead of refusing the model.
  Options& autoRoundNumIPUs(bool auto_round_num_ipus = true);
  /// Use the modelled device. Overrides POPTORCH_IPU_MODEL. Device: results are the same; time and memory are not
  /// modelled yet.
  Options& useIpuModel(bool use_model);
  /// Use this device. Allowed: >= 0. Device: hint.
  Options& useIpuId(int64_t ipu_id);
  /// Compile without a device; running is an error. Sets the connection type to Never. Allowed: 1, 2, 21.
  Options& useOfflineIpuTarget(int64_t ipu_version = 2);
  /// When the executor attaches to its devices. Allowed: ConnectionType.
  Options& connectionType(ConnectionType connection_type);
  /// Synchronisation between devices. Allowed: SyncPattern. Device: hint.
  Options& syncPattern(SyncPattern sync_pattern);
  /// Bytes that a device has. A program that needs more is E0405 when it is compiled. Counted is what the plan places
  /// on a device (docs/memory.md): weights, optimizer state, gradient sums, constants, activations and values inside a
  /// task. PipelinedExecution.recompute("fit") recomputes to stay below. Devices that a map leaves out have no limit.
  /// Allowed: >= 0; {"IPU0": bytes} for some devices. Unit: bytes.
  Options& deviceMemoryLimit(int64_t limit_bytes);
  /// Host memory for tensors off chip; a file takes what goes beyond it. Without a limit all of them are in host memory
  /// (docs/phases.md). Allowed: >= 0. Unit: bytes.
  Options& offChipMemoryLimit(int64_t limit_bytes);
  /// Folder of the file for tensors off chip; by default the system's temporary folder. Nothing is left in it, also
  /// after a crash. A file system in memory (tmpfs) saves no memory. A folder that cannot be written is E0605 when the
  /// model is compiled. Allowed: a folder that can be written.
  Options& offChipFolder(const std::string& path);
  /// Seed of the device's random numbers and of torch (torch.manual_seed).
  Options& randomSeed(uint64_t random_seed);
  /// Folder of log files. Device: hint.
  Options& logDir(const std::string& log_dir);
  /// Repeated log lines stop after so many; None means never. Allowed: >= 0. Unit: lines.
  Options& maxRepeatLogs(std::optional<int64_t> max_lines);
  /// Name used in reports.
  Options& modelName(const std::string& name);
  /// Keep compiled executables in this folder; None disables.
  Options& enableExecutableCaching(std::optional<std::string> path);
  /// More accurate variance in normalisations. Device: hint: torch's own kernels are used.
  Options& enableStableNorm(bool enabled);
  /// No host input and output; the device makes up data.
  Options& enableSyntheticData(bool enabled);
  /// Count device cycles of each run.
  Options& logCycleCount(bool log_cycle_count);
  /// Write a profile of each run into a folder. Device: docs/tracing.md.
  Options& enableProfiling(std::optional<std::string> profile_dir = {});
  /// Do not prefix operation names with the module path.
  Options& disableModuleNamescope();
  /// Buffers that copyNamedBuffersToDevice uploads.
  Options& updatableNamedBuffers(const std::vector<std::string>& buffers);
  /// Send messages about unexpected optimizer attributes to debug.
  Options& relaxOptimizerAttributesChecks(bool relax = true);
  /// Show a bar while compiling.
  Options& showCompilationProgressBar(bool show = true);
  /// Frames whose file name contains one of these are not user code. Replaces the list.
  Options& sourceLocationExcludes(const std::vector<std::string>& excludes);
  /// Extends the list of sourceLocationExcludes.
  Options& appendToLocationExcludes(const std::vector<std::string>& excludes);
  /// Devices that exist; 0: as many as the model asks for. A model that names more is refused (E0402). Allowed: >= 0.
  /// Unit: devices.
  Options& devices(int64_t count);
  /// Refuse pipelines with fewer micro-batches than PopTorch asks for: gradientAccumulation >= 2 * stages - 1 in
  /// training, deviceIterations >= stages in inference (E0401). Off: they run, with more waiting. Python:
  /// abele.allowShortPipeline.
  Options& enforcePipelineMinimum(bool enforce = true);
  /// The devices work in the memory of the model's own parameters where they can, instead of on copies: no weight is
  /// held twice, and what either side writes is seen at once. Off: the device's weights change and are seen by copies
  /// only. Python: abele.shareWeights.
  Options& shareWeights(bool share = true);
  /// Intra-op threads of each device; 0: torch's number of threads shared among the devices. Allowed: >= 0. Unit:
  /// threads.
  Options& threadsPerDevice(int64_t threads);
  /// What the devices of the model are: workers on the CPU, or streams of accelerators, one after the other; more
  /// devices than are named begin the list again (docs/devices.md). Default: ABELE_DEVICE, else cpu. One that is not
  /// there is refused (E0702). Allowed: cpu; accelerators of torch: cuda (all of them), cuda:1, xpu; a list of these:
  /// cuda:0,cuda:1,cpu.
  Options& deviceType(const std::string& device);
  /// Accelerators whose torch has device graphs (2.13 or newer) capture what their workers enqueue, and replay it from
  /// the third time on: less time of the host, the same numbers. Off, the default: the workers enqueue each kernel each
  /// time.
  Options& deviceGraphs(bool replay);

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
  int64_t num_devices() const;
  bool enforce_pipeline_minimum() const;
  bool share_weights() const;
  CommGroupType input_cgt() const;
  int64_t output_return_period() const;
  // </generated>

  // Groups. They are views: the Options must outlive them.
  /// What concerns training only.
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

  /// Bytes that some devices have: {{"IPU0", bytes}}; those that are not named have no limit. Takes the place of a
  /// limit for every device, and the other way round. Throws E0702 for other names and for bytes below 0.
  Options& deviceMemoryLimit(const std::map<std::string, int64_t>& limit_bytes);
  /// Empty where none was given, or one for every device.
  std::map<std::string, int64_t> device_memory_limits() const;

  /// True if no output mode was chosen.
  bool defaultOutputMode() const;
  /// Rows that one call takes when a micro-batch has batch_size of them: batch_size * deviceIterations *
  /// gradientAccumulation * replicationFactor / input group size. Source: spec data.md section 1.
  int64_t combinedBatchSize(int64_t batch_size) const;
  int64_t deviceIterations() const;
  int64_t gradientAccumulation() const;
  int64_t replicationFactor() const;

  /// Applies a file of setter calls, one a line, as PopTorch reads it: "deviceIterations(4)",
  /// "outputMode(poptorch.OutputMode.All)", "Training.gradientAccumulation(8)  # comment". Arguments are literals,
  /// members of enumerations, strategies and TensorLocationSettings. Throws E0702 naming the line where one does not
  /// parse, and then applies nothing; E0712 when the file cannot be read; else what the setters throw.
  Options& loadFromFile(const std::string& path);
  /// Applies a JSON object {"dotted.setter": arguments}; a list gives several arguments. Throws E0701, E0702.
  Options& fromJson(const std::string& text);
  /// What fromJson reads back; values that are the defaults are left out.
  std::string toJson() const;
  /// All values as text. Equal options give equal text.
  std::string str() const;
  /// From now on setters throw E0707.
  void freeze() const;
  bool isFrozen() const;

  struct Values;  // of options/store.h

 private:
  friend struct OptionsAccess;
  std::unique_ptr<Values> values_;
};

/// What concerns training only. A view of an Options, which must outlive it.
class ABELE_API TrainingOptions {
 public:
  // <generated Training>
  /// Micro-batches per weight update. Must be 1 for inference. Allowed: >= 1. Unit: micro-batches.
  TrainingOptions& gradientAccumulation(int64_t gradient_accumulation);
  /// Gradients are the mean or the sum over accumulation steps and replicas. Allowed: Mean, Sum.
  TrainingOptions& accumulationAndReplicationReductionType(ReductionType reduction_type);
  /// When the mean divides. Allowed: MeanReductionStrategy. Device: hint.
  TrainingOptions& setMeanAccumulationAndReplicationReductionStrategy(MeanReductionStrategy mean_reduction_strategy);
  /// Adapt the loss scale to the range of float16. Device: yes; between calls.
  TrainingOptions& setAutomaticLossScaling(bool enabled);
  /// Convolution layout. Device: hint.
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
  /// Raise an Error at a division by zero, an overflow or a NaN.
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

/// Expert settings of PopTorch's backend: accepted by name, checked at compile (E0701, E0702). A view of an Options,
/// which must outlive it.
class ABELE_API PopartOptions {
 public:
  // <generated _Popart>
  /// Stores an expert setting; its name and type are checked at compile.
  PopartOptions& set(const std::string& key, const Setting& value);
  /// Engine options. Device: hint.
  PopartOptions& setEngineOptions(const std::map<std::string, std::string>& engine_options);
  /// Switches optimisations of the original compiler. Device: hint.
  PopartOptions& setPatterns(const std::map<std::string, bool>& patterns, int64_t level = 2);
  // </generated>

  /// Nothing where the setting has no value.
  std::optional<Setting> get(const std::string& name) const;

 private:
  friend class Options;
  explicit PopartOptions(Options::Values* values) : values_(values) {}
  Options::Values* values_;
};

/// Several processes. A view of an Options, which must outlive it.
class ABELE_API DistributedOptions {
 public:
  // <generated Distributed>
  /// Index and number of processes. Allowed: 0 <= process_id < num_processes.
  DistributedOptions& configureProcessId(int64_t process_id, int64_t num_processes);
  /// Devices that each process owns: a replica with more lies in consecutive processes, which all are called with the
  /// same batch (docs/transfers.md). replicationFactor then counts the replicas of all processes. 0: every process has
  /// whole replicas. Allowed: >= 0. Unit: devices.
  DistributedOptions& devicesPerProcess(int64_t devices);
  /// Consecutive processes that hold the stages of a replica together; replicas that share them have the same stages in
  /// each. Needs devicesPerProcess. 0: as few as the numbers of processes and replicas allow (docs/transfers.md).
  /// Allowed: >= 0. Unit: processes.
  DistributedOptions& processesPerReplica(int64_t processes);
  /// Which of the processes that hold the stages of a replica get the results of a call, losses and anchored tensors
  /// among them. all: each. first, last: that one alone. owner: each result is in the process whose stage makes it.
  /// Elsewhere a result is None, as on other ranks of torch.distributed.pipelining (C++: an undefined tensor), and
  /// nothing is sent for it. All processes choose the same (E0713). Arguments that forward writes are the same in all
  /// (docs/transfers.md). Allowed: all, first, last, owner.
  DistributedOptions& outputRank(const std::string& rank);
  /// Environment variables that hold the number of processes and the index. Unit: processes.
  DistributedOptions& setEnvVarNames(const std::string& var_num_processes, const std::string& var_process_id);
  /// Back to one process. Returns None.
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

/// How much the library logs: "TRACE", "DEBUG", "INFO", "WARN", "ERR" or "OFF" (E0702). The environment variables
/// POPTORCH_LOG_LEVEL (WARN by default) and POPTORCH_LOG_DEST (stderr) hold until then: docs/environment.md.
/// Threads: safe.
ABELE_API void setLogLevel(const std::string& level);

}  // namespace abele

// Drives capture -> passes -> plan -> exe -> runtime for one model and one set of input shapes. Public API and bind/
// are thin over it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/TensorBase.h>

#include "capture/capture.h"
#include "exe/build/build.h"
#include "exe/executable.h"
#include "host/processes.h"
#include "host/replicas.h"
#include "passes/pass.h"
#include "plan/memory_report.h"
#include "plan/plan.h"
#include "runtime/runtime.h"

namespace at {
class Tensor;
struct Generator;
}  // namespace at

namespace abele::host {

enum class OutputMode { kFinal, kEveryN, kAll, kSum };
enum class Strategy { kPipelined, kSharded };

/// Who chooses the schedule: kGiven takes SessionOptions::schedule, kFastest what is predicted to be fastest, kDefault
/// 1F1B or what is predicted to be noticeably faster in no more memory (docs/schedules.md).
enum class ScheduleRule : uint8_t { kGiven, kFastest, kDefault };

/// A value inside the program that each call also returns, apart from its results.
struct Anchor {
  std::string short_name;
  std::string long_name;  // one of Session::tensorNames()
  OutputMode mode = OutputMode::kAll;
  int64_t period = 1;
};

/// What the session needs of the user's options. All plain data. A new field belongs into cacheKey, or is left out
/// there on purpose (executable_cache.cc).
struct SessionOptions {
  bool training = false;
  int64_t device_iterations = 1;
  int64_t gradient_accumulation = 1;
  int64_t replicas = 1;          // copies of the model, each with devices of its own
  int64_t input_group_size = 1;  // replicas that take the same inputs; divides `replicas`
  CommGroup input_grouping = CommGroup::kConsecutive;
  ProcessOptions processes;       // each with `replicas` of its own and its own part of the inputs
  bool broadcast_buffers = true;  // refuse forwards that write buffers where replicas take different inputs (E0702)
  std::vector<ReplicaGrouping> groupings;  // E0702 for what does not fit the model or the replicas
  bool mean_reduction = true;              // gradients: mean or sum over accumulation and replicas
  OutputMode output_mode = OutputMode::kAll;
  int64_t output_period = 1;
  Strategy strategy = Strategy::kPipelined;
  /// Order of a pipeline's work in training; results never depend on it. Inference has one.
  plan::ScheduleKind schedule = plan::ScheduleKind::k1F1B;
  ScheduleRule schedule_rule = ScheduleRule::kGiven;
  std::vector<int64_t> most_held;  // of zero-bubble orders, by stage (plan::PlanOptions); empty: the schedule's own
  /// Times of the stages for schedules that order by them, as costs() returns them; empty: estimated from shapes, so
  /// that equal programs get equal executables. E0404 for what cannot be read or has another number of stages.
  std::string costs;
  /// Backward makes the values of its stage's forward again instead of keeping them; the last stage only where
  /// schedules let it wait.
  bool recompute = false;
  /// The least of such recomputation that fits device_memory; none where all fits. `recompute` wins.
  bool recompute_to_fit = false;
  plan::MemoryLimits device_memory;    // E0405 beyond it
  plan::Locations locations;           // what lives off-chip between the tasks that use it; results never depend on it
  exe::ShardingRules sharding;         // what is dealt to the replicas; results never depend on it
  int64_t off_chip_memory_limit = -1;  // bytes of host memory for it before a file takes the rest; -1: no limit
  std::string off_chip_folder;         // of that file; empty: the system's temporary folder
  /// What forward reads of values that may differ stays what it was at compile time, and each step checks it (E0101).
  bool trusts_reads = false;
  passes::StageRules stages;
  /// PopTorch's minimum: accumulation >= 2F - 1 in training, device iterations >= F in inference (E0401). abele: off.
  bool enforce_pipeline_minimum = false;
  int64_t num_devices = 0;     // 0: as many as the model asks for
  int threads_per_device = 0;  // 0: max(1, cores / devices used)
  bool has_seed = false;
  uint64_t seed = 0;
  bool floating_point_exceptions = false;  // a step fails (E0604) where finite operands give an infinity or a NaN
  bool stochastic_rounding = false;        // of float16 results; seeded like the random stream
  /// The factor of the loss is halved when more than this share of float16 gradient elements lies above the edge (a
  /// share of float16's range), else doubled; looked at after each period of updates, so the updates of a call run one
  /// by one.
  bool auto_loss_scaling = false;
  double loss_scale_edge = 0.125;
  double loss_scale_threshold = 1e-7;
  int64_t loss_scale_period = 1;
  std::vector<Anchor> anchors;
  std::vector<std::string> updatable_buffers;  // what the user will upload alone: buffers of the model (E0702)
  /// Calls read random numbers that the device made up once, not their arguments (integers: zeros, valid as indices).
  bool synthetic_data = false;
  std::string cache_path;         // folder of compiled programs; empty: none
  std::string initializers_path;  // file that the weights are written to when a program is compiled; empty: none
  /// The devices work in the memory of the model's parameters where they can, instead of on copies: what a step makes
  /// of them, and what the program writes there between two steps, is seen at once.
  bool share_weights = false;
  const void* weights_owner = nullptr;  // sessions of one owner, which never run at once, share the same memory
  bool cache_lock = false;              // processes that share cache_path compile one after another
};

/// Device optimizer. Hyper-parameters by group; names as in runtime/device/cpu/cpu_backend.h.
struct OptimizerSpec {
  passes::OptimizerRules rules;
  std::vector<std::map<std::string, double>> groups;
  /// Backward starts from this many times the loss, and updates divide it out: keeps float16 gradients in range.
  double loss_scaling = 1;
};

/// Figures of a compiled session, for reports.
struct SessionReport {
  double capture_s = 0, compile_s = 0;                 // compile: all but capture
  std::vector<std::pair<std::string, double>> phases;  // of compilation, in order: name and seconds
  bool from_cache = false;                             // the executable was found in the cache
  std::string schedule;                                // of the stages' work, "1f1b"
  std::string schedule_reason;                         // why it was chosen; empty where it was given
  struct Stage {
    std::string name;
    int device = 0;
    int replica = 0;
    int64_t busy_ns = 0, waiting_ns = 0, peak_bytes = 0;
    int64_t mapped_bytes = 0;    // by the stage's device; peak_bytes without what it fetches from off chip
    int64_t resident_bytes = 0;  // of these, what is in memory by now, in whole pages
  };
  std::vector<Stage> stages;  // last step; replica after replica
  double bubble = 0;          // share of worker time without work, last step
  int64_t step_ns = 0;
  int64_t off_chip_bytes = 0, off_chip_file_bytes = 0;  // of all devices, and how much of it is in a file
  int64_t heap_allocations = 0;     // of tensor memory by the workers, last step; 0 once the first steps are over
  int64_t shared_weight_bytes = 0;  // of the model's own memory that the devices work in
  int64_t workspace_bytes = 0;      // that the workers took from the heap for kernels so far; no part of peak_bytes
};

/// When the tensors of the last call moved. Units: s since the call began. By tensor, then by micro-batch (outputs:
/// those that are returned). input: the host begins to make the inputs ready, input_complete: the devices can read
/// them; output: the micro-batch's last forward segment is done, output_complete: the results are the caller's.
struct PerfCounters {
  std::vector<std::vector<double>> input, input_complete, output, output_complete;
};

struct CompiledProgram;

/// Throws E0708 where a tensor's storage is smaller than its sizes: somebody resized or freed it behind its back.
void requireMemory(const at::Tensor& tensor, const std::string& name);
/// Of each: "input 0".
void requireMemory(const std::vector<at::Tensor>& inputs);

/// Threads: one caller at a time. A call from within a step or compilation throws E0608, a call of what was compiled
/// before this process was forked off E0607; the destructor then leaves alone what lives by threads.
class Session {
  struct Impl;

 public:
  explicit Session(SessionOptions options);
  ~Session();
  Session(Session&&) noexcept;

  /// forward and model as in capture::Request; inputs: the full-size tensors of one call. Uploads the weights.
  /// Throws E01xx..E06xx; the model is unchanged then and compile may be called again.
  /// Asked about every 50 ms, on the calling thread, while it waits; true, or what it throws, ends the wait.
  using Poll = std::function<bool()>;
  struct Program {
    std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)> forward;
    std::vector<capture::ModelTensor> model;
    std::function<std::string()> source_location;
    void* mode_object = nullptr;
    bool checks_comparisons = false;                                   // as in capture::Request
    std::function<std::string(const c10::StorageImpl*)> name_of = {};  // as in capture::Request
    /// Told the devices of the stages of one replica before the program is loaded; may throw.
    std::function<void(const std::vector<int>& stage_devices)> check_devices = {};
    std::function<void(int progress, int total)> progress =
        {};  // called while compiling, first with 0, last with total
    Poll poll = {};
  };
  void compile(const Program& program, const std::vector<at::Tensor>& inputs, const OptimizerSpec& optimizer);
  bool isCompiled() const;
  /// Was it compiled before this process was forked off? Nothing of it can be used then.
  bool isOfParent() const;
  /// Takes over what another session compiled; model: where its weights are now, by name. Uploads them. Throws E0712
  /// when the model or the options differ from the compiled ones; compile may be called then.
  void load(CompiledProgram program, const std::vector<capture::ModelTensor>& model, const Poll& poll = {});
  /// What load() takes, constants included.
  CompiledProgram program() const;

  /// One call: device_iterations updates. Returns the flattened results shaped by the output mode
  /// (spec executor.md section 3). Throws E0704 when shape or dtype differ from the compiled ones.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const Poll& poll = {});

  /// Between the model's tensors and the device, in place.
  void copyWeightsToHost();
  void copyWeightsToDevice();
  /// Uploads only these buffers.
  void copyBuffersToDevice(const std::vector<std::string>& names);
  void setOptimizer(const OptimizerSpec& optimizer);  // E0706 if the rules differ from the compiled ones

  std::map<std::string, at::Tensor> optimizerState() const;  // "exp_avg/encoder.weight" -> copy
  void setOptimizerState(const std::map<std::string, at::Tensor>& state);
  /// Of a program without an optimizer, for callers that update the weights themselves: each parameter's gradients of
  /// the last call, summed over the micro-batches of its last group and over the replicas; parameters that the loss
  /// does not depend on are absent. Copies. Throws E0706 where the program updates the weights.
  std::map<std::string, at::Tensor> gradientSums() const;
  at::Tensor rngState() const;
  void setRngState(const at::Tensor& state);

  /// Value of an anchor in the last call. Throws E0708 for unknown names, E0705 before the first call.
  at::Tensor anchor(const std::string& short_name) const;
  const std::vector<std::string>& tensorNames() const;
  std::vector<int> stageDevices() const;  // by stage
  PerfCounters perfCounters() const;      // empty lists before the first call and with synthetic data
  /// Cycles of the last call on a device clock of kCyclesPerSecond; 0 before the first call.
  static constexpr int64_t kCyclesPerSecond = 1'330'000'000;
  int64_t cycles() const;

  // Of a program that this session compiled itself; E0705 when it was loaded or found in the cache.
  const ir::Graph& graph() const;           // after passes
  const std::string& capturedText() const;  // before passes
  const plan::Plan& plan() const;
  plan::MemoryReport memoryReport() const;
  const exe::Executable& executable() const;
  SessionReport report() const;
  /// What the next step's loss is multiplied by: the optimizer's loss_scaling and the factor of automatic scaling.
  double lossScale() const;
  /// Costs of the stages as JSON for plan::parseChain: times of the last step, of capture before the first.
  std::string costs() const;
  /// What the last call took; 0 before the first.
  int64_t callNs() const;
  /// Why the program is placed as it is, for people: stages, predicted times, alternatives. E0705 as graph().
  std::string explain() const;
  /// The pieces of an AutoSplit with the times that capture measured, as JSON; every boundary is there. For benchmarks.
  std::string pieces() const;

  /// For verify.cc.
  Impl& parts() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace abele::host

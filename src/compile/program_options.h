// What the compiler and the devices need of the user's options, as plain data. from_options.cc makes it, for C++
// programs and for Python's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "compile/replica_groups.h"
#include "exe/build/build.h"
#include "passes/pass.h"
#include "plan/memory_report.h"
#include "plan/plan.h"

namespace abele::host {

/// Which of how many processes this is.
struct ProcessOptions {
  int64_t index = 0;
  int64_t count = 1;
  int64_t on_host = 1;          // of them; they share its cores
  int cores = 0;                // for a replica, as all processes agreed; 0: what this one has
  int64_t devices = 0;          // that each has; 0: as many as its replicas need
  int64_t stages = 1;           // consecutive ones that hold the stages of one replica
  std::string group = "abele";  // name of their process group in c10d's registry
};

/// See session/profile.h.
struct ProfileOptions {
  std::string path;  // of the file; empty: none is written
  int64_t runs = 2;  // how many of the first are in it
};

enum class OutputMode { kFinal, kEveryN, kAll, kSum };
enum class Strategy { kPipelined, kSharded };

/// Which instructions are joined to save passes over memory. kExact: those whose results keep every bit.
enum class Fusion : uint8_t { kOff, kExact, kFast };

/// Who chooses the schedule: kGiven takes ProgramOptions::schedule, kFastest what is predicted to be fastest, kDefault
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
struct ProgramOptions {
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
  Fusion fusion = Fusion::kExact;
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
  ProfileOptions profile;
  std::string name;                     // of the model, for people; empty: none was given
  std::optional<int64_t> device_group;  // the group of devices that it runs on (registry/devices.h); nothing: any
  int64_t num_devices = 0;              // 0: as many as the model asks for
  std::string device;          // "cuda", "cuda:0,cuda:1,cpu": what the model's devices are (device_list.h); empty: cpu
  bool device_graphs = true;   // accelerators replay what their workers enqueue, where they can
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

/// Device optimizer. Hyper-parameters by group; names as in runtime/device/backend.h.
struct OptimizerSpec {
  passes::OptimizerRules rules;
  std::vector<std::map<std::string, double>> groups;
  /// Backward starts from this many times the loss, and updates divide it out: keeps float16 gradients in range.
  double loss_scaling = 1;
};

/// The device that the program is captured and runs on. Throws E0702 for one that is not there.
c10::Device captureDevice(const ProgramOptions& options);
/// Throws E0702 for values outside their range, E0711 for options that several processes do not have.
void checkOptions(const ProgramOptions& options);
/// Cores of this machine for the devices of one replica, at least 1.
int coresOfReplica(const ProgramOptions& options);
/// Processes, or groups of consecutive ones that hold one replica together, that have replicas of their own.
int64_t replicaProcesses(const ProgramOptions& options);
/// Replicas of all processes.
int64_t totalReplicas(const ProgramOptions& options);
/// Micro-batches that the inputs of one call are split into.
int64_t inputMicroBatches(const ProgramOptions& options);
/// Steps of the runtime in a call. Automatic loss scaling looks at the gradients of every update before the next one
/// starts, so it takes the updates of a call one by one.
int64_t stepsPerCall(const ProgramOptions& options);

}  // namespace abele::host

// For users of the library: how a model is run. Names and defaults are PopTorch's. Next: model.h.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "abele/export.h"

namespace abele {

/// Which micro-batch results a call returns. With M of them dim 0 of a result is multiplied by M and a scalar becomes a
/// vector of length M; M == 1 leaves the shape alone. kDefault: kFinal in training, kAll in inference.
/// Source: spec executor.md section 3.
enum class OutputMode { kFinal, kEveryN, kAll, kSum, kDefault };

/// Gradients over the micro-batches of an update.
enum class ReductionType { kSum, kMean };

/// Which replicas form a group. For size k and m groups: kConsecutive {0..k-1}, {k..2k-1}, ...; kOrthogonal {0, m, 2m,
/// ...}, {1, m+1, ...}, ...; kNoGrouping: each replica alone; kAll: one group.
enum class CommGroupType { kAll, kConsecutive, kOrthogonal, kNoGrouping };

/// How the host's tensor of a parameter with groups lies: a value for every group, or one for every replica.
enum class VariableRetrievalMode { kOnePerGroup, kAllReplicas };

/// How blocks become stages when no list of stages is given. kSameAsIpu: a block's ipu_id is its stage.
/// kAutoIncrement: each new block id takes the next stage, from 1 (stage 0 is the code before the first block).
enum class AutoStage { kSameAsIpu, kAutoIncrement };

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

/// In which order the stages of a pipeline do their forwards and backwards in training (docs/schedules.md). k1F1B: as
/// soon as a backward can run. kGPipe: all forwards of an update first. kInterleaved: 1F1B over several stages a
/// device, stage s on device s mod devices. kZeroBubble: weight gradients wait until a device would idle, in the memory
/// that 1F1B needs at most; kZeroBubble2: in twice as much.
enum class Schedule { k1F1B, kGPipe, kInterleaved, kZeroBubble, kZeroBubble2 };

/// Stages that run at the same time in phased execution.
struct ABELE_API Phase {
  Phase(std::initializer_list<Stage> list) : stages(list) {}
  Phase(const char* block_id) : stages{block_id} {}
  /// One device a stage, in order.
  Phase& ipus(const std::vector<int>& devices);
  std::vector<Stage> stages;
};

/// How the stages of a model run. Results never depend on it. Use one of those below.
struct ExecutionStrategy {
  bool pipelined = true;
  bool alternating = false;   // parallel phased
  std::vector<int> phase_of;  // by stage; empty: no phases
  AutoStage auto_stage = AutoStage::kSameAsIpu;
  std::vector<Stage> stages;  // empty: as auto_stage says
  Schedule pipeline_schedule = Schedule::k1F1B;
  bool recomputes = false;
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
  /// Backward makes the values of its stage's forward again instead of keeping them: the same bits in less memory.
  /// Kept: what a stage was given, what other stages read, what recomputationCheckpoint() names.
  PipelinedExecution& recompute(bool use = true) {
    recomputes = use;
    return *this;
  }
};

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
};

/// Phases one after another that alternate between two groups of devices: even phases on even devices.
struct ABELE_API ParallelPhasedExecution : ExecutionStrategy {
  ParallelPhasedExecution(std::initializer_list<Phase> phases);
};

class TrainingOptions;

/// Every setter returns *this, so that calls chain, and throws E0702 for a value outside its range. A model takes a
/// copy: later changes do not reach it. Threads: compatible.
class ABELE_API Options {
 public:
  Options();
  Options(const Options& other);
  Options& operator=(const Options& other);
  ~Options();

  /// Weight updates (training) or micro-batches (inference) in one call; multiplies dim 0 of inputs. >= 1.
  Options& deviceIterations(int64_t iterations);
  /// Data-parallel copies of the model, each on devices of its own; they share weights and optimizer state. Multiplies
  /// dim 0 of inputs; an update sees the gradients of all.
  Options& replicationFactor(int64_t replicas);
  /// Replicas of one group take the same rows of the inputs. Call replicationFactor first.
  Options& inputReplicaGrouping(int64_t group_size, CommGroupType type = CommGroupType::kConsecutive);
  /// true (default): a forward that writes buffers is refused where replicas take different inputs. false: every
  /// replica has buffers of its own, and the module gets those of replica 0.
  Options& broadcastBuffers(bool broadcast = true);
  /// The period is for kEveryN: results of micro-batches N, 2N, 3N, ...
  Options& outputMode(OutputMode mode, int64_t period = 1);
  Options& setExecutionStrategy(const ExecutionStrategy& strategy);
  /// Seed of the model's random stream. Without one it continues a copy of torch's default stream as it stands at
  /// compile.
  Options& randomSeed(uint64_t seed);
  /// A step throws E0604 where finite operands give an infinity or a NaN, or a NaN is compared. Slow; for debugging.
  Options& enableFloatingPointExceptions(bool enable = true);
  /// Float16 results are computed in float32 and rounded up or down at random, so that the expectation is exact.
  Options& enableStochasticRounding(bool enable = true);
  /// Intra-op threads of each device; 0: torch's number of threads shared among the devices.
  Options& threadsPerDevice(int threads);
  /// Devices that exist; 0: as many as the model asks for. A model that names more is refused (E0402).
  Options& devices(int64_t count);
  /// Refuse pipelines with fewer micro-batches than PopTorch asks for: gradientAccumulation >= 2 * stages - 1 in
  /// training, deviceIterations >= stages in inference (E0401). Off: they run, with more waiting.
  Options& enforcePipelineMinimum(bool enforce = true);
  /// Folder of compiled programs: a program that was compiled before, with equal options, is found there instead of
  /// compiled again. Made on demand (E0712). Empty: none. Never changes results.
  Options& enableExecutableCaching(const std::string& folder);
  /// What concerns training only.
  TrainingOptions Training();

  /// Rows that one call takes when a micro-batch has batch_size of them: batch_size * deviceIterations *
  /// gradientAccumulation * replicationFactor / input group size. Source: spec data.md section 1.
  int64_t combinedBatchSize(int64_t batch_size) const;
  int64_t deviceIterations() const;
  int64_t gradientAccumulation() const;
  int64_t replicationFactor() const;

 private:
  friend class TrainingOptions;
  friend struct OptionsAccess;
  struct Values;
  std::unique_ptr<Values> values_;
};

/// A view of the training part of an Options, which must outlive it.
class ABELE_API TrainingOptions {
 public:
  /// Micro-batches whose gradients make one weight update. >= 1; 1 for inference.
  TrainingOptions& gradientAccumulation(int64_t micro_batches);
  /// kMean (default): an update sees the mean of the micro-batches' gradients over all replicas.
  TrainingOptions& accumulationAndReplicationReductionType(ReductionType type);

 private:
  friend class Options;
  explicit TrainingOptions(Options& options) : options_(&options) {}
  Options* options_;
};

/// How much the library logs: "TRACE", "DEBUG", "INFO", "WARN", "ERR" or "OFF" (E0702). The environment variables
/// POPTORCH_LOG_LEVEL (WARN by default) and POPTORCH_LOG_DEST (stderr) hold until then: docs/environment.md.
/// Threads: safe.
ABELE_API void setLogLevel(const std::string& level);

}  // namespace abele

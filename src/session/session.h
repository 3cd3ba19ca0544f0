// Drives capture -> passes -> plan -> exe -> runtime for one model and one set of input shapes. Public API and bind/
// are thin over it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/TensorBase.h>

#include "capture/capture.h"
#include "compile/compiler.h"
#include "exe/executable.h"
#include "plan/memory_report.h"
#include "runtime/runtime.h"
#include "session/stored_tensor.h"

namespace at {
class Tensor;
struct Generator;
}  // namespace at

namespace abele::host {

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
  /// By this process to others in the last call: activations, gradients, gradient sums, results; all but the notes of
  /// 64 bytes by which the processes agree.
  int64_t sent_bytes = 0;
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

/// Threads: one caller at a time. A call from within a step or compilation throws E0608, a call of what was compiled
/// before this process was forked off E0607; the destructor then leaves alone what lives by threads.
class Session {
  struct Impl;

 public:
  explicit Session(ProgramOptions options);
  ~Session();
  Session(Session&&) noexcept;

  using Poll = host::Poll;
  using Program = host::Program;
  /// inputs: the full-size tensors of one call. Uploads the weights.
  /// Throws E01xx..E06xx; the model is unchanged then and compile may be called again.
  void compile(const Program& program, const std::vector<at::Tensor>& inputs, const OptimizerSpec& optimizer);
  bool isCompiled() const;
  /// Was it compiled before this process was forked off? Nothing of it can be used then.
  bool isOfParent() const;
  /// Takes over what another session compiled; model: where its weights are now, by name. Uploads them. Throws E0712
  /// when the model or the options differ from the compiled ones; compile may be called then.
  void load(CompiledProgram program, const std::vector<capture::ModelTensor>& model, const Poll& poll = {},
            const MetaTensors& meta = {});
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
  /// Which of the processes that hold the stages of a replica has each tensor of the model; those that no device has
  /// are absent.
  std::map<std::string, int64_t> owners() const;
  /// A copy of the newest value of a tensor of the model, whichever process has it; host: the model's own. All
  /// processes that hold stages call it, in one order. Throws E0713, E0606.
  at::Tensor weight(const std::string& name, const at::Tensor& host) const;
  /// Tells all other processes of the program that this one has come here, with a word of its own, and waits for them.
  /// act: as runtime::Announcement has it. Returns: all words, by process. Throws E0713, E0606.
  std::vector<uint64_t> meet(const char* act, uint64_t word) const;
  void setOptimizer(const OptimizerSpec& optimizer);  // E0706 if the rules differ from the compiled ones

  std::map<std::string, at::Tensor> optimizerState() const;  // "exp_avg/encoder.weight" -> copy
  void setOptimizerState(const std::map<std::string, at::Tensor>& state);
  /// The same, read one at a time, for as long as the session lives. Of processes that hold stages all read the same
  /// ones, in one order.
  StoredTensors wholeState() const;
  /// Where each process has the tensors of its own stages alone: of these what it has itself, without the others' help.
  StoredTensors ownState() const;
  /// For files: where each process has its own stages' alone, it can read no others, and what it reads may be the
  /// device's own memory, whose contents stay until the next step; else all are in memory.
  StoredTensors storedState() const;
  void takeStoredState(const StoredTensors& state);
  /// Of a model that was made on the meta device: each process has the tensors of its own stages alone.
  bool hasOwnWeightsAlone() const;
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
  /// Bytes that the options say the devices have.
  const plan::MemoryLimits& deviceMemory() const;
  /// Why the program is placed as it is, for people: stages, predicted times, alternatives. E0705 as graph().
  std::string explain() const;
  /// The pieces of an AutoSplit with the times that capture measured, as JSON; every boundary is there. For benchmarks.
  std::string pieces() const;

  /// For verify.cc and device_use.cc.
  Impl& parts() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace abele::host

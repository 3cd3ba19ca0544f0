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
  /// What this process sent to others in the last call: activations, gradients, gradient sums and results, without the
  /// notes of 64 bytes by which the processes agree.
  int64_t sent_bytes = 0;
  int64_t off_chip_bytes = 0, off_chip_file_bytes = 0;  // of all devices, and how much of it is in a file
  int64_t heap_allocations = 0;     // of tensor memory by the workers, last step; 0 once the first steps are over
  int64_t shared_weight_bytes = 0;  // of the model's own memory that the devices work in
  int64_t workspace_bytes = 0;      // that the workers took from the heap for kernels so far; no part of peak_bytes
};

/// When the tensors of the last call moved: for each tensor a list by micro-batch (of outputs, the returned ones).
/// input: the host begins to prepare the inputs. input_complete: the devices can read them. output: the last forward
/// segment of the micro-batch has ended. output_complete: the caller has the results. Units: s since the call began.
struct PerfCounters {
  std::vector<std::vector<double>> input, input_complete, output, output_complete;
};

/// Threads: one caller at a time. A call from within a step or compilation throws E0608. In a forked child, a call of
/// what its parent had compiled throws E0607, and the destructor does not touch what needs the parent's threads.
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
  /// Was it compiled by the parent of this forked process? It cannot be used then.
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
  /// For each tensor of the model, which of the processes that hold the stages of a replica has it. Tensors that no
  /// device has are absent.
  std::map<std::string, int64_t> owners() const;
  /// A copy of the newest value of a tensor of the model, whichever process has it. host: the model's own tensor. All
  /// processes that hold stages call this for the same tensors in the same order. Throws E0713, E0606.
  at::Tensor weight(const std::string& name, const at::Tensor& host) const;
  /// Waits until all processes of the program have called this, and exchanges one word of each. act: as in
  /// runtime::Announcement. Returns: the words, by process. Throws E0713, E0606.
  std::vector<uint64_t> meet(const char* act, uint64_t word) const;
  void setOptimizer(const OptimizerSpec& optimizer);  // E0706 if the rules differ from the compiled ones

  std::map<std::string, at::Tensor> optimizerState() const;  // "exp_avg/encoder.weight" -> copy
  void setOptimizerState(const std::map<std::string, at::Tensor>& state);
  /// The same tensors, read one at a time, for as long as the session lives. Processes that hold stages all read the
  /// same ones in the same order.
  StoredTensors wholeState() const;
  /// wholeState(), but for one case: if each process has only the tensors of its own stages, the state of these, which
  /// is read without the other processes.
  StoredTensors ownState() const;
  /// For files. If each process has only the tensors of its own stages, all names are there, this process can read its
  /// own ones alone, and what it reads may be the device's memory, valid until the next step. Else copies of all.
  StoredTensors storedState() const;
  void takeStoredState(const StoredTensors& state);
  /// Of a model that was made on the meta device: each process has the tensors of its own stages alone.
  bool hasOwnWeightsAlone() const;
  /// For callers that update the weights themselves: copies of each parameter's gradient in the last call, summed over
  /// the micro-batches of the last group and over the replicas. Parameters that the loss does not depend on are absent.
  /// Throws E0706 if the program has an optimizer.
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

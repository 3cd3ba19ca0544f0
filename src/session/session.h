// Compiles and runs one model for one set of input shapes: capture, passes, plan, executable, runtime. The public API
// and bind/ are thin layers over it.
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

namespace abele::session {

/// Figures of a compiled session, for reports.
struct SessionReport {
  double capture_s = 0, compile_s = 0;                 // compile_s: all but capture
  std::vector<std::pair<std::string, double>> phases;  // phases of compilation, in order: name and seconds
  bool from_cache = false;                             // the executable came from the cache
  std::string schedule;                                // the order of the stages' work: "1f1b"
  std::string schedule_reason;                         // why it was chosen; empty if the user chose it
  std::string links;                                   // links between memories, and the source of their times; or
                                                       // empty
  struct Stage {
    std::string name;
    int device = 0;
    int replica = 0;
    int64_t busy_ns = 0, waiting_ns = 0, peak_bytes = 0;
    int64_t mapped_bytes = 0;    // bytes of the stage's device; peak_bytes without what it fetches from off chip
    int64_t resident_bytes = 0;  // the part of mapped_bytes that is in memory by now, in whole pages
  };
  std::vector<Stage> stages;  // last step; by replica, then by stage
  double bubble = 0;          // share of worker time without work, last step
  int64_t step_ns = 0;
  /// Bytes that this process sent to others in the last call: activations, gradients, gradient sums and results,
  /// without the 64-byte notes of agreements.
  int64_t sent_bytes = 0;
  int64_t off_chip_bytes = 0, off_chip_file_bytes = 0;  // over all devices; the second is the part in a file
  int64_t heap_allocations = 0;     // the workers' allocations of tensor memory, last step; 0 after the first steps
  int64_t shared_weight_bytes = 0;  // bytes of the model's own memory that the devices use
  int64_t workspace_bytes = 0;      // heap memory that the workers took for kernels so far; not in peak_bytes
};

/// When the tensors of the last call moved: for each tensor a list by micro-batch (outputs: by returned micro-batch).
/// input: the host begins to prepare the inputs. input_complete: the devices can read them. output: the last forward
/// segment of the micro-batch has ended. output_complete: the caller has the results. Units: s since the call began.
struct PerfCounters {
  std::vector<std::vector<double>> input, input_complete, output, output_complete;
};

/// How long the tensors of the last call took, over the micro-batches that it returned; zeros before the first call and
/// with synthetic data. Units: s. Source: spec executor.md section 8.
struct Latency {
  double least = 0, most = 0, average = 0;
};
enum class Way {
  kHostToDevice,  // from the first request of an input until all inputs are complete
  kCompute,       // from complete inputs until the last output is ready
  kDeviceToHost,  // from the first output that is ready until all are complete
  kAll,           // from the first request of an input until all outputs are complete
};

/// Threads: one caller at a time. A call from within a step or compilation throws E0608. In a forked child, calls of a
/// session that its parent compiled throw E0607, and its destructor does not free what needs the parent's threads.
class Session {
  struct Impl;

 public:
  explicit Session(compile::ProgramOptions options);
  ~Session();
  Session(Session&&) noexcept;

  using Poll = compile::Poll;
  using Program = compile::Program;
  /// inputs: the full-size tensors of one call. Uploads the weights.
  /// Throws E01xx..E06xx without a change to the model; compile may then be called again.
  void compile(const Program& program, const std::vector<at::Tensor>& inputs, const compile::OptimizerSpec& optimizer);
  bool isCompiled() const;
  /// Returns true in a forked child if the parent compiled the session, which then cannot be used.
  bool isOfParent() const;
  /// Loads a program from another session and uploads the weights. model: the weights, matched by name. Throws E0712 if
  /// the model or the options differ from the compiled ones; compile may then be called.
  void load(compile::CompiledProgram program, const std::vector<capture::ModelTensor>& model, const Poll& poll = {},
            const compile::MetaTensors& meta = {});
  /// Whether load() accepts the machines on which the program would run. All processes call it.
  bool wasDividedAlike(const compile::CompiledProgram& program, const Poll& poll) const;
  /// The program in the form that load() takes, constants included.
  compile::CompiledProgram program() const;

  /// Runs one call: device_iterations updates. Returns the flattened results, shaped by the output mode
  /// (spec executor.md section 3). Throws E0704 if a shape or dtype differs from the compiled one.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const Poll& poll = {});

  /// Copies between the model's tensors and the device, in place.
  void copyWeightsToHost();
  void copyWeightsToDevice();
  /// Uploads only these buffers.
  void copyBuffersToDevice(const std::vector<std::string>& names);
  /// For each tensor of the model, which of the processes that hold the stages of a replica holds it. Leaves out
  /// tensors that no device holds.
  std::map<std::string, int64_t> owners() const;
  /// A copy of the newest value of a tensor of the model, from the process that holds it. host: the model's own tensor.
  /// All processes that hold stages call this for the same tensors in the same order. Throws E0713, E0606.
  at::Tensor weight(const std::string& name, const at::Tensor& host) const;
  /// Waits until all processes of the program have called this, and exchanges one number of each process. act: as in
  /// collective::Announcement. Returns: the numbers, by process. Throws E0713, E0606.
  std::vector<uint64_t> meet(const char* act, uint64_t word) const;
  void setOptimizer(const compile::OptimizerSpec& optimizer);  // E0706 if the rules differ from the compiled ones

  std::map<std::string, at::Tensor> optimizerState() const;  // "exp_avg/encoder.weight" -> copy
  void setOptimizerState(const std::map<std::string, at::Tensor>& state);
  /// The same tensors, read one at a time while the session lives. Processes that hold stages all read the
  /// same ones in the same order.
  StoredTensors wholeState() const;
  /// The same, but if each process has only the tensors of its own stages, only their state, which is read without the
  /// other processes.
  StoredTensors ownState() const;
  /// The state for files. If each process has only the tensors of its own stages, the result lists all names, and this
  /// process can read only its own; a read may return the device's memory, valid until the next step. Otherwise returns
  /// copies of all tensors.
  StoredTensors storedState() const;
  void takeStoredState(const StoredTensors& state);
  /// Returns true if each process has only the tensors of its own stages, because the model was made on the meta
  /// device.
  bool hasOwnWeightsAlone() const;
  /// For callers that update the weights themselves: copies of each parameter's gradient in the last call, summed over
  /// the micro-batches of the last group and over the replicas. Parameters that the loss does not depend on are absent.
  /// Throws E0706 if the program has an optimizer.
  std::map<std::string, at::Tensor> gradientSums() const;
  at::Tensor rngState() const;
  void setRngState(const at::Tensor& state);

  /// The value of an anchor in the last call. Throws E0708 for unknown names, E0705 before the first call.
  at::Tensor anchor(const std::string& short_name) const;
  const std::vector<std::string>& tensorNames() const;
  std::vector<int> stageDevices() const;  // by stage
  PerfCounters perfCounters() const;      // empty lists before the first call and with synthetic data
  Latency latency(Way way) const;
  /// Cycles of the last call on a device clock of kCyclesPerSecond; 0 before the first call.
  static constexpr int64_t kCyclesPerSecond = 1'330'000'000;
  int64_t cycles() const;

  // For programs that this session compiled itself; E0705 if they were loaded or found in the cache.
  const ir::Graph& graph() const;           // after passes
  const std::string& capturedText() const;  // before passes
  const plan::Plan& plan() const;
  plan::MemoryReport memoryReport() const;
  const exe::Executable& executable() const;
  SessionReport report() const;
  /// The factor of the next step's loss: the optimizer's loss_scaling times the factor of automatic scaling.
  double lossScale() const;
  /// Costs of the stages as JSON for plan::parseChain: times of the last step, or of capture before the first step.
  std::string costs() const;
  /// The time of the last call; 0 before the first call.
  int64_t callNs() const;
  /// The memory limits of the devices in the options.
  const plan::MemoryLimits& deviceMemory() const;
  /// The reasons for the program's placement, for people: stages, predicted times, alternatives. Throws E0705 like
  /// graph().
  std::string explain() const;
  /// The pieces of an AutoSplit with the times that capture measured, as JSON with every boundary. For benchmarks.
  std::string pieces() const;

  /// The parts, for verify.cc and device_use.cc.
  Impl& parts() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace abele::session

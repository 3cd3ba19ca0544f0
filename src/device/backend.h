// The interface between a session and a kind of device. A kind is a folder below this one and a row of backends.def;
// test/unit/device runs the same tests against each of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>

#include "exe/executable.h"
#include "runtime/backend.h"

namespace at {
class Tensor;
}  // namespace at

namespace abele::collective {
class Peers;
}  // namespace abele::collective

namespace abele::device {

/// Observes the results of a step, for tools that compare them. Threads: called by all workers at once.
class Watch {
 public:
  virtual ~Watch() = default;
  /// Called when an instruction of the action's segment has just filled a slot, before anything changes it. The tensor
  /// is the device's own.
  virtual void computed(const runtime::ActionContext& action, int32_t instruction, int32_t slot,
                        const at::Tensor& tensor) = 0;
};

struct DeviceOptions {
  int threads_per_device = 1;  // intra-op threads of each worker
  /// A step fails (E0604) if finite operands give an infinity or a NaN, or if a NaN is compared.
  bool floating_point_exceptions = false;
  /// Float16 results are computed in float32 and rounded at random, without bias. Equal seeds give equal results.
  bool stochastic_rounding = false;
  uint64_t rounding_seed = 0;
  /// Counts the float16 gradients above this magnitude, and all of them. 0: does not count.
  double gradient_edge = 0;
  /// Host memory for off-chip groups; a file takes the rest. -1: no limit.
  int64_t off_chip_memory_limit = -1;
  std::string off_chip_folder;               // for that file; empty: the system's temporary folder
  int64_t process = 0;                       // index of this process in Executable::processes
  int64_t stage_process = 0;                 // index of this process in Executable::stage_processes
  std::shared_ptr<collective::Peers> peers;  // the processes with which this one exchanges messages, or null
  /// For each result of a replica (numOutputs()) the process of Executable::stage_processes that receives it;
  /// kAllProcesses: all of them. Empty: each process receives all results.
  static constexpr int32_t kAllProcesses = -1;
  std::vector<int32_t> readers;
  Watch* watch = nullptr;  // outlives the backend; may be null
  /// Each process has only the weights of its own stages. download() fills only tensors of these stages, without
  /// messages; uploads are not compared with those of other processes.
  bool has_own_weights_alone = false;
  /// The devices of the row `accelerator`, by memory space: "cuda:1", "cuda:0,cuda:1,cpu"; the list repeats for further
  /// spaces. Empty: the first accelerator that torch has.
  std::string accelerator;
  /// Whether accelerators with graphs replay the work that their workers enqueue.
  bool device_graphs = true;
};

/// The position of stochastic rounding. Its random numbers depend on seed, step and place in the step.
struct RoundingPosition {
  uint64_t seed = 0;
  uint64_t step = 0;  // completed steps
};

/// A generator of the user's program; instructions name it by its number (base/own_generator.h).
struct OwnStream {
  at::Generator generator;
  at::Generator start;    // with `restarts`: the state from which each micro-batch draws
  bool restarts = false;  // false: each micro-batch continues after the previous one, and the first one starts at
                          // `generator`
  int64_t draws = 0;      // draws of each micro-batch, as in Executable::random_draws
  Normals normals;
};

/// Counts of elements of float16 gradients.
struct GradientSizes {
  int64_t large = 0;
  int64_t all = 0;
  bool overflowed = false;  // a gradient sum was not finite, so the updates were skipped
};

/// Memory that kernels allocated in addition to the planned groups.
struct Allocations {
  int64_t count = 0;
  int64_t bytes = 0;
};

/// A loaded executable: its memory, its inputs and its outputs. Tensors of the host are CPU tensors. Persistent memory
/// starts as zeros, accumulators and optimizer state as External::initial.
/// Processes: if several processes hold the stages of a replica, upload() keeps the part that belongs to this one. All
/// of them call download(), value() and finish() in the same order, and each gets the values of all.
/// Order: a step sees what was uploaded, bound and set before it began. Calls after it see its results. When upload()
/// returns, it no longer needs the host's tensor; when download() and value() return, they have filled theirs. Bound
/// results are complete when finish() returns. A device that copies or computes asynchronously waits in these calls.
/// Threads: the caller's of Runtime::run, between steps; interrupt() on any.
class DeviceBackend : public runtime::Backend {
 public:
  /// Copies a host tensor into, or out of, external `index` (Executable::externals). Does nothing for an external that
  /// the program does not use. Throws E0704 for a tensor of the wrong type. replica: for upload(), kAllReplicas or the
  /// replica whose copy is meant; replicas that share the copy get it too.
  static constexpr int32_t kAllReplicas = -1;
  virtual void upload(int32_t external, const at::Tensor& host, int32_t replica = kAllReplicas) = 0;
  virtual void download(int32_t external, at::Tensor& host, int32_t replica = 0) const = 0;
  /// The external's own memory, in the compiled type, valid until the next step. Undefined if the external is in
  /// several places, or if the host cannot read its memory directly; then use value().
  virtual at::Tensor memory(int32_t external) const;
  /// A new host tensor with the external's value; undefined for an external that the program does not use.
  virtual at::Tensor value(int32_t external, int32_t replica = 0) const = 0;
  /// Makes the device work in the memory of `host`, which it keeps alive, instead of its own copy. upload() and
  /// download() from and to that memory then do nothing. An undefined tensor switches back to its own memory, whose
  /// contents are old. Returns false for an external that cannot do so: the tensor has another geometry than compiled,
  /// replicas have copies of their own, the external is in a file, or the device does not work in the host's memory.
  virtual bool placeIn(int32_t external, const at::Tensor& host) = 0;
  /// Whether the program writes this external.
  virtual bool writes(int32_t external) const = 0;

  /// Binds the caller's tensors for the next step. Micro-batch j of a replica takes rows [k*b, (k+1)*b) of inputs[i],
  /// with k = j * inputParts() + the replica's part; if k has only one value, the whole tensor. The tensors must stay
  /// unchanged until the step is over. Throws E0704 for another number, type or size than compiled.
  virtual void bindInputs(const std::vector<at::Tensor>& inputs) = 0;
  /// outputs[r * numOutputs() + target][j] receives result `target` of micro-batch j of replica r; skips undefined
  /// tensors. A tensor that is bound to several micro-batches of a replica receives their sum. If several processes
  /// hold the stages of a replica, the process that makes a result and those that receive it (DeviceOptions::readers)
  /// bind the same results.
  virtual void bindOutputs(const std::vector<std::vector<at::Tensor>>& outputs) = 0;

  /// Sets a number of a parameter group, which all later updates read: a row ABELE_HYPER of base/optimizers.def,
  /// gradient_scale, fused or rounds_rate. Throws E0706 for another name. Does nothing for a group without updates.
  virtual void setHyper(int group, const std::string& name, double value) = 0;

  /// The counts of the last step (DeviceOptions::gradient_edge).
  virtual GradientSizes takeGradientSizes() = 0;

  /// The random stream of the next step: a generator like newGenerator()'s, in the state in which micro-batch 0 starts.
  /// A completed step moves it past all numbers that the step may draw; a failed step does not move it.
  virtual void setGenerator(const at::Generator& generator) = 0;
  virtual at::Generator generator() const = 0;
  /// Sets the user's own generators, before devices are made. A step draws from them in the state at its beginning. A
  /// completed step moves them past all that it draws, as it does with its own stream. This default throws E0106 unless
  /// the list is empty; devices that support own generators override it.
  virtual void setOwnStreams(std::vector<OwnStream> streams);
  /// A generator of the kind that the device draws from.
  virtual at::Generator newGenerator(uint64_t seed) const = 0;

  /// The rounding of the next step. Steps are counted as the generator moves.
  virtual void setRounding(const RoundingPosition& position) = 0;
  virtual RoundingPosition rounding() const = 0;

  /// Bytes of all groups on a worker's device (shared groups under index 0); equals exe::residentBytes.
  virtual int64_t allocatedBytes(int32_t worker) const = 0;
  /// The part of these bytes that takes memory now, including host memory in which the worker's device works.
  virtual int64_t residentBytes(int32_t worker) const = 0;
  /// The bytes of off-chip groups that are in a file.
  virtual int64_t fileBytes() const = 0;
  /// Allocations by all devices of this kind since the process began. After the first steps none are added.
  virtual Allocations allocations() const = 0;
};

struct BackendRow {
  const char* name;
  std::unique_ptr<DeviceBackend> (*make)(const exe::Executable&, const DeviceOptions&);
  bool computes;  // false: memory holds symbolic contents (null/symbolic.h)
};
const std::vector<BackendRow>& allBackends();
/// Requires: the executable outlives it. Throws E0702 for a name without a row, and the errors of the device: E0603,
/// E0605, E0702.
std::unique_ptr<DeviceBackend> makeBackend(const std::string& name, const exe::Executable& executable,
                                           const DeviceOptions& options);

}  // namespace abele::device

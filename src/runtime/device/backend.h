// The device contract: what a session needs of a kind of device. A kind is a folder below this one and a row of
// backends.def; test/unit/runtime/device runs the same tests against each of them.
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

namespace abele::runtime {

class Peers;

/// Sees what a step computes, for those that compare it. Threads: called by all workers at once.
class Watch {
 public:
  virtual ~Watch() = default;
  /// An instruction of the action's segment has just filled a slot, and nothing has changed it since. The tensor is the
  /// device's own.
  virtual void computed(const ActionContext& action, int32_t instruction, int32_t slot, const at::Tensor& tensor) = 0;
};

struct DeviceOptions {
  int threads_per_device = 1;  // intra-op threads of each worker
  /// A step fails (E0604) where finite operands give an infinity or a NaN, or a NaN is compared.
  bool floating_point_exceptions = false;
  /// Float16 results are computed in float32 and rounded at random, without bias. Equal seeds give equal results.
  bool stochastic_rounding = false;
  uint64_t rounding_seed = 0;
  /// Count float16 gradients by magnitude: elements above it, and all. 0: do not count.
  double gradient_edge = 0;
  /// Host memory for off-chip groups, beyond which a file takes the rest; -1: no limit.
  int64_t off_chip_memory_limit = -1;
  std::string off_chip_folder;   // of that file; empty: the system's temporary folder
  int64_t process = 0;           // which of Executable::processes this is
  int64_t stage_process = 0;     // which of Executable::stage_processes: it has the memory of its own workers
  std::shared_ptr<Peers> peers;  // the other processes that it hears from; null where there are none
  /// By result of a replica (numOutputs()): which of Executable::stage_processes gets it from the one that makes it;
  /// kAllProcesses: each. Empty: each gets all.
  static constexpr int32_t kAllProcesses = -1;
  std::vector<int32_t> readers;
  Watch* watch = nullptr;  // outlives the backend; null: nobody looks
  /// The host's weights are those of the stages of this process alone: download() gives what is here, and nothing to
  /// tensors of other stages, and asks nobody; uploads are not compared with those of other processes.
  bool has_own_weights_alone = false;
  /// Which ones the row `accelerator` takes, by memory space: "cuda:1", "cuda:0,cuda:1,cpu"; spaces beyond begin the
  /// list again. Empty: the first that torch has.
  std::string accelerator;
  /// Accelerators that have graphs replay what their workers enqueue.
  bool device_graphs = true;
};

/// Where stochastic rounding stands: its random numbers follow from seed, step and place in the step.
struct RoundingPosition {
  uint64_t seed = 0;
  uint64_t step = 0;  // completed ones
};

/// A generator of the program's own, which instructions name by its number (base/own_generator.h).
struct OwnStream {
  at::Generator generator;
  at::Generator start;  // where a micro-batch draws from, if restarts
  bool restarts =
      false;          // else each micro-batch draws on from where the one before stopped, the first from `generator`
  int64_t draws = 0;  // of a micro-batch, as of Executable::random_draws
  Normals normals;
};

/// Elements of float16 gradients.
struct GradientSizes {
  int64_t large = 0;
  int64_t all = 0;
  bool overflowed = false;  // a gradient sum is not finite, and the updates were skipped
};

/// Memory that kernels allocated beside the planned groups.
struct Allocations {
  int64_t count = 0;
  int64_t bytes = 0;
};

/// A loaded executable: its memory, and all that goes in and out of it. Tensors of the host are CPU tensors. Where
/// several processes hold the stages of a replica, upload() keeps what this one holds; download(), value() and finish()
/// are called by all of them, in one order, and give each what any of them has. Persistent memory starts as zeros,
/// accumulators and optimizer state as External::initial. Order: a step sees what was uploaded, bound and set before it
/// began, and what is asked for after it sees the step. upload() is done with the host's tensor when it returns,
/// download() and value() have filled theirs, and bound results are complete when finish() returns: a device that
/// copies or computes asynchronously waits there. Threads: the caller's of Runtime::run, between steps; interrupt() on
/// any.
class DeviceBackend : public Backend {
 public:
  /// Copies a host tensor into / out of external `index` (Executable::externals); nothing happens to one that the
  /// program does not use. A tensor of the wrong type: E0704. upload's replica: kAllReplicas, or the one whose copy
  /// (and of all that share it) is meant.
  static constexpr int32_t kAllReplicas = -1;
  virtual void upload(int32_t external, const at::Tensor& host, int32_t replica = kAllReplicas) = 0;
  virtual void download(int32_t external, at::Tensor& host, int32_t replica = 0) const = 0;
  /// The external's own memory, in the compiled type, where there is one place for it that the host can read as any
  /// other memory; valid until the next step. Undefined: there is no such place, and value() is the way.
  virtual at::Tensor memory(int32_t external) const;
  /// A new host tensor with the external's value; undefined for one that the program does not use.
  virtual at::Tensor value(int32_t external, int32_t replica = 0) const = 0;
  /// The device works in the memory of `host`, which it keeps alive, instead of its own copy; undefined: in its own
  /// memory again, whose contents are old. upload() and download() from and to that memory do nothing then. False: this
  /// external cannot, because it is no tensor of the compiled geometry, replicas have copies of their own, it lives in
  /// a file, or the device does not work in the host's memory.
  virtual bool placeIn(int32_t external, const at::Tensor& host) = 0;
  /// Does the program write this external?
  virtual bool writes(int32_t external) const = 0;

  /// Binds the caller's tensors for the next step. Micro-batch j of a replica takes rows [k*b, (k+1)*b) of inputs[i],
  /// k = j * inputParts() + the replica's part; where there is but one k, the whole tensor. The device may read them
  /// until the step is over: they must stay unchanged. Another number, type or size than compiled: E0704.
  virtual void bindInputs(const std::vector<at::Tensor>& inputs) = 0;
  /// outputs[r * numOutputs() + target][j] receives result `target` of micro-batch j of replica r; undefined tensors
  /// are skipped. One that is bound to several micro-batches of a replica receives their sum. Where several processes
  /// hold the stages of a replica, the one that makes a result and those that get it (DeviceOptions::readers) bind the
  /// same ones.
  virtual void bindOutputs(const std::vector<std::vector<at::Tensor>>& outputs) = 0;

  /// A number of a parameter group, which updates read from now on: a row ABELE_HYPER of base/optimizers.def,
  /// gradient_scale, fused or rounds_rate. Another name: E0706. Nothing happens for a group without updates.
  virtual void setHyper(int group, const std::string& name, double value) = 0;

  /// What the last step counted (DeviceOptions::gradient_edge).
  virtual GradientSizes takeGradientSizes() = 0;

  /// Random stream of the next step: a generator like newGenerator()'s, whose state is where micro-batch 0 starts. A
  /// completed step moves it behind all that the step may draw; one that failed leaves it.
  virtual void setGenerator(const at::Generator& generator) = 0;
  virtual at::Generator generator() const = 0;
  /// The program's own generators. A step draws from where they stand when it begins, and a completed one leaves them
  /// behind all that it draws, as it does its own stream. Call it before devices are made. Throws E0106 where the
  /// device cannot: here, unless there are none.
  virtual void setOwnStreams(std::vector<OwnStream> streams);
  /// Of the kind that the device draws from.
  virtual at::Generator newGenerator(uint64_t seed) const = 0;

  /// Of the next step. Steps are counted as the generator moves.
  virtual void setRounding(const RoundingPosition& position) = 0;
  virtual RoundingPosition rounding() const = 0;

  /// Bytes of all groups on a worker's device (shared ones under index 0); equals exe::residentBytes.
  virtual int64_t allocatedBytes(int32_t worker) const = 0;
  /// Of these, what takes memory by now, with the host's memory that the worker's device works in.
  virtual int64_t residentBytes(int32_t worker) const = 0;
  /// Of off-chip groups, the bytes in a file.
  virtual int64_t fileBytes() const = 0;
  /// By all devices of this kind since the process began. A steady state adds none.
  virtual Allocations allocations() const = 0;
};

struct BackendRow {
  const char* name;
  std::unique_ptr<DeviceBackend> (*make)(const exe::Executable&, const DeviceOptions&);
  bool computes;  // false: contents stand for values (null/symbolic.h)
};
const std::vector<BackendRow>& allBackends();
/// The executable outlives it. Throws E0702 for a name that no row has, and what the device throws: E0603, E0605,
/// E0702.
std::unique_ptr<DeviceBackend> makeBackend(const std::string& name, const exe::Executable& executable,
                                           const DeviceOptions& options);

}  // namespace abele::runtime

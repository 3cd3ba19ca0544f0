// CPU devices: a device is a worker thread with its own number of intra-op threads; memory is planned arenas.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/TensorBase.h>

#include "exe/executable.h"
#include "runtime/backend.h"

namespace at {
class Tensor;
struct Generator;
}  // namespace at

namespace abele::runtime {

class Peers;

/// Sees what a step computes, for those that compare it. Threads: called by all workers at once.
class Watch {
 public:
  virtual ~Watch() = default;
  /// An instruction of the action's segment has just filled a slot, and nothing has changed it since.
  virtual void computed(const ActionContext& action, int32_t instruction, int32_t slot, const at::Tensor& tensor) = 0;
};

struct CpuOptions {
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
  std::shared_ptr<Peers> peers;  // training: the other processes; null where there are none
  Watch* watch = nullptr;        // outlives the backend; null: nobody looks
};

/// Where stochastic rounding stands: its random numbers follow from seed, step and place in the step.
struct RoundingPosition {
  uint64_t seed = 0;
  uint64_t step = 0;  // completed ones
};

/// Elements of float16 gradients.
struct GradientSizes {
  int64_t large = 0;
  int64_t all = 0;
  bool overflowed = false;  // a gradient sum is not finite, and the updates were skipped
};

class CpuBackend : public Backend {
 public:
  static std::unique_ptr<CpuBackend> create(const exe::Executable& executable, const CpuOptions& options);

  /// Copies a host tensor into / out of external `index` (Executable::externals). upload of the wrong type: E0704.
  /// upload's replica: kAllReplicas, or the one whose copy (and of all that share it) is meant.
  static constexpr int32_t kAllReplicas = -1;
  virtual void upload(int32_t external, const at::Tensor& host, int32_t replica = kAllReplicas) = 0;
  virtual void download(int32_t external, at::Tensor& host, int32_t replica = 0) const = 0;
  /// The device works in the memory of `host`, which it keeps alive, instead of its own copy; undefined: in its own
  /// memory again, whose contents are old. upload() and download() from and to that memory do nothing then. False: this
  /// external cannot, because it is no tensor of the compiled geometry, replicas have copies of their own, or it lives
  /// in a file. Not during a step.
  virtual bool placeIn(int32_t external, const at::Tensor& host) = 0;
  /// Does the program write this external?
  virtual bool writes(int32_t external) const = 0;
  /// Tensor that shares the external's memory; for tests and state dictionaries.
  virtual at::Tensor external(int32_t index, int32_t replica = 0) const = 0;

  /// Binds the caller's tensors for the next step. Micro-batch j of a replica takes rows [k*b, (k+1)*b) of inputs[i],
  /// k = j * inputParts() + the replica's part; where there is but one k, the whole tensor. Not copied when dense: must
  /// stay alive and unchanged during the step.
  virtual void bindInputs(const std::vector<at::Tensor>& inputs) = 0;
  /// outputs[r * numOutputs() + target][j] receives result `target` of micro-batch j of replica r; undefined tensors
  /// are skipped.
  virtual void bindOutputs(const std::vector<std::vector<at::Tensor>>& outputs) = 0;

  /// Value of a hyper-parameter for a parameter group, read by the update kernels at the next update:
  /// lr, momentum, dampening, weight_decay, beta1, beta2, eps, maximize, fused, gradient_scale.
  virtual void setHyper(int group, const std::string& name, double value) = 0;

  /// What the last step counted (CpuOptions::gradient_edge).
  virtual GradientSizes takeGradientSizes() = 0;

  /// Random stream of the step: a CPU generator whose state is where micro-batch 0 starts.
  virtual void setGenerator(const at::Generator& generator) = 0;
  virtual at::Generator generator() const = 0;  // advanced past the steps that ran

  virtual void setRounding(const RoundingPosition& position) = 0;
  virtual RoundingPosition rounding() const = 0;  // of the next step

  /// Bytes of all arenas on a worker's device (shared ones under index 0); equals exe::residentBytes.
  virtual int64_t allocatedBytes(int32_t worker) const = 0;
  /// Of these, the bytes of pages that are in memory by now, and of the host's memory that the worker's device works
  /// in.
  virtual int64_t residentBytes(int32_t worker) const = 0;
  /// Of off-chip groups, the bytes in a file.
  virtual int64_t fileBytes() const = 0;
  /// Takes all that is in a file out of the process's resident set.
  virtual void releaseAll() = 0;
};

}  // namespace abele::runtime

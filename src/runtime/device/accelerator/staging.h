// Inputs and results on their way between the host and accelerators. Used by accelerator_backend.cc.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "exe/executable.h"
#include "runtime/device/accelerator/places.h"
#include "runtime/device/backend.h"

namespace abele::runtime {

/// Micro-batches of inputs, copied through pinned memory before a step to each device that reads them; results in the
/// memory of the device that makes them, copied to the caller's tensors behind it. All memory is kept from step to
/// step. Threads: the caller's, between steps.
class Staging {
 public:
  Staging(const exe::Executable& executable, const Places& places);

  /// Enqueues the copies. Requires: checkInputs(), checkOutputs().
  void bindInputs(const std::vector<at::Tensor>& inputs);
  void bindOutputs(const std::vector<std::vector<at::Tensor>>& outputs);
  /// The workers are done: fills the caller's tensors.
  void fetchOutputs();

  /// Pinned memory that all of this process have taken.
  static Allocations pinnedAllocations();

 private:
  struct Part {
    at::Tensor pinned;
    std::vector<at::Tensor> on_device;  // by space
  };
  struct Result {
    at::Tensor bound;  // the caller's, in this step
    at::Tensor ours, pinned;
  };
  void findUses();
  bool isRead(int32_t space, int64_t index, int64_t part) const;
  void bindInput(int64_t index, const at::Tensor& input);
  void bringPart(Part& part, int32_t space, const at::Tensor& rows, const Type& type) const;
  void bindOutput(std::size_t target, const std::vector<at::Tensor>& tensors);

  const exe::Executable& executable_;
  const Places& places_;
  std::vector<std::vector<char>> reads_;      // by space and input slot
  std::vector<int32_t> space_of_output_;      // by target
  std::vector<std::vector<Part>> inputs_;     // by input: its micro-batches
  std::vector<at::Tensor> bound_;             // the caller's inputs, while a copy may read them
  std::vector<std::vector<Result>> outputs_;  // by target; those beyond the step's have nothing bound
};

}  // namespace abele::runtime

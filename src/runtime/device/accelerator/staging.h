// Inputs and results on their way between the host and an accelerator. Used by accelerator_backend.cc.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include "exe/executable.h"
#include "runtime/device/aten/arena.h"

namespace abele::runtime {

/// Micro-batches of inputs, copied to the device through pinned memory before a step; results in the device's memory,
/// copied to the caller's tensors behind it. Threads: the caller's, between steps.
class Staging {
 public:
  Staging(const exe::Executable& executable, SlotTable& slots, c10::Stream copies)
      : executable_(executable), slots_(slots), copies_(copies), inputs_(executable.input_slots.size()) {}

  /// Enqueues the copies. Requires: checkInputs(), checkOutputs().
  void bindInputs(const std::vector<at::Tensor>& inputs);
  void bindOutputs(const std::vector<std::vector<at::Tensor>>& outputs);
  /// The workers are done: fills the caller's tensors.
  void fetchOutputs();

  /// A tensor of the caller's on a device: copies wait for the stream that he works on.
  void waitForCaller(const at::Tensor& tensor) const;

 private:
  struct Part {
    at::Tensor pinned, on_device;
  };
  void bindInput(int64_t index, const at::Tensor& input);

  const exe::Executable& executable_;
  SlotTable& slots_;
  c10::Stream copies_;
  std::vector<std::vector<Part>> inputs_;                   // by input: its micro-batches, kept from step to step
  std::vector<at::Tensor> bound_;                           // the caller's inputs, while a copy may read them
  std::vector<std::pair<at::Tensor, at::Tensor>> outputs_;  // the caller's, ours
};

}  // namespace abele::runtime

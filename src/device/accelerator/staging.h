// Moves inputs and results between the host and accelerators. Used by accelerator_backend.cc and accelerator_device.cc.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "device/accelerator/places.h"
#include "device/backend.h"
#include "exe/executable.h"

namespace abele::device {

/// Allocates pinned memory of the host; pinnedAllocations() counts it.
at::Tensor pinnedBytes(int64_t bytes);

/// Inputs are copied through pinned memory to each device that reads them, micro-batch by micro-batch, while devices
/// work on earlier ones. Results are in the memory of the device that makes them, and are copied to the caller's
/// tensors after the step. All memory is kept from step to step. Threads: bring() on those of the workers; the other
/// functions on the caller's, between steps.
class Staging {
 public:
  /// stage_process: as in Places. Ignores inputs and results that its workers do not use.
  Staging(const exe::Executable& executable, int64_t stage_process, const Places& places);

  /// Binds the tensors of the next step. Requires: checkInputs(), checkOutputs().
  void bindInputs(const std::vector<at::Tensor>& inputs);
  void bindOutputs(const std::vector<std::vector<at::Tensor>>& outputs);
  /// Called before a worker's action: copies the inputs that it reads, unless this step has copied them already. Work
  /// that is enqueued on the stream next can read them; on the host (no stream) they are complete when this returns.
  void bring(int32_t worker, const exe::Action& action, const std::optional<c10::Stream>& stream);
  /// Called when the step is over: releases the caller's inputs.
  void releaseInputs();
  /// Fills the caller's tensors. Requires: the workers are done.
  void fetchOutputs();

  /// Pinned memory that all stagings of this process have taken.
  static Allocations pinnedAllocations();

 private:
  /// The rows of a micro-batch in one memory space.
  struct Arrival {
    at::Tensor tensor;
    bool is_brought = false;  // in this step
    std::optional<c10::Event> event;
  };
  struct Part {
    at::Tensor rows;  // the caller's rows, while a copy may read them
    at::Tensor pinned;
    bool is_pinned = false;         // the rows are in pinned memory in this step
    std::vector<Arrival> arrivals;  // by space
  };
  struct Result {
    at::Tensor bound;  // the caller's tensor in this step
    at::Tensor ours, pinned;
  };
  void findUses(int64_t stage_process);
  bool isRead(int32_t space, int64_t index, int64_t part) const;
  Part newPart() const;
  void bindInput(int64_t index, const at::Tensor& input);
  void bringPart(Part& part, int32_t space, const Type& type) const;
  void bindOutput(std::size_t target, const std::vector<at::Tensor>& tensors);
  const Type& typeOfInput(int64_t index) const {
    return executable_.slots[static_cast<std::size_t>(executable_.input_slots[static_cast<std::size_t>(index)])].type;
  }

  const exe::Executable& executable_;
  const Places& places_;
  std::vector<std::vector<char>> reads_;               // by space and input slot
  std::vector<std::vector<int64_t>> read_by_segment_;  // by segment: inputs that it reads
  std::vector<int32_t> space_of_output_;               // by target; -1: no worker of this process makes it
  std::mutex mutex_;                                   // guards inputs_ while a step runs
  std::vector<std::vector<Part>> inputs_;              // by input: its micro-batches
  std::vector<std::vector<Result>> outputs_;           // by target; targets beyond the step's have no tensor bound
};

}  // namespace abele::device

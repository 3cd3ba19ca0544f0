// One worker's share of an executable on accelerators: a stream, and its segments as ready calls.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "device/accelerator/off_chip_window.h"
#include "device/accelerator/pinned_messages.h"
#include "device/accelerator/places.h"
#include "device/accelerator/random_position.h"
#include "device/accelerator/segment_graphs.h"
#include "device/accelerator/staging.h"
#include "device/aten/arena.h"
#include "device/aten/gradient_count.h"
#include "device/aten/worker_calls.h"
#include "device/backend.h"
#include "device/processes/agreement.h"
#include "device/processes/stage_shares.h"
#include "kernels/optimizers.h"
#include "runtime/backend.h"

namespace abele::device {

/// Events between the streams of a step's workers. A worker records an event before it adds to the runtime's counter,
/// and another one reads the event after it has seen the counter, so events need no lock. Workers without a stream
/// record nothing, because their work is done when the counter says so.
class StepEvents {
 public:
  /// stage_process: as in Places. Workers of other processes have no events here, only messages.
  StepEvents(const exe::Executable& executable, int64_t stage_process, const Places& places, c10::DeviceType type);
  void begin();
  /// Waits until a segment has completed the wait's number of times in this step. The stream waits; without a stream,
  /// the host waits.
  void await(const exe::Wait& wait, const std::optional<c10::Stream>& stream) const;
  /// Called each time after the worker has enqueued all of a segment.
  void record(int32_t segment, const c10::Stream& stream);
  /// After this event a memory space has its contents of the start of the step.
  c10::Event& begun(int32_t space) { return begun_[static_cast<size_t>(space)]; }

  /// Lets the host wait for all that an update depends on, once for each group of micro-batches. If a kernel of any
  /// device has failed by then, throws its error in every worker, before any update. stream: the worker's stream, on
  /// which the update's waits are enqueued.
  void requireNoError(int32_t micro_batch, const std::optional<c10::Stream>& stream);

 private:
  const Places& places_;
  std::vector<char> is_here_;                       // by segment
  std::vector<c10::Event> begun_;                   // by space
  std::vector<std::vector<c10::Event>> completed_;  // by segment, in order
  std::vector<size_t> counts_;                      // for this step; only the segment's worker changes its count
  std::mutex mutex_;
  int32_t checked_ = -1;  // the micro-batch that was waited for last; guarded by mutex_, like the next member
  std::exception_ptr error_;
};

/// The streams on which a worker enqueues: `own` on its device; for a link also `source`, on the device from which it
/// copies values. A worker on the host has neither. others: for a worker that adds up sums with other processes,
/// streams on the further devices of its process.
struct WorkerStreams {
  std::optional<c10::Stream> own, source;
  std::vector<c10::Stream> others = {};
};

/// Device memory for copies between two frames of host memory: each copy passes through it, so that streams can make
/// the copies. As large as the largest frame.
class Passage {
 public:
  /// Uses the device's current stream; all users of the tensor must do so too. The contents last until the next call.
  at::Tensor tensor(const Type& type, c10::Device device);
  int64_t bytes() const { return memory_.defined() ? static_cast<int64_t>(memory_.nbytes()) : 0; }

 private:
  at::Tensor memory_;
};

/// The parts of a worker other than its calls; the backend owns them.
struct WorkerParts {
  const SlotTable& slots;
  OffChipWindow* window;  // if it uses off-chip memory on the device; otherwise null
  RandomPosition& random;
  WorkerStreams streams;
  at::Tensor large_gradients;  // if it counts for automatic loss scaling; otherwise undefined
  Passage& passage;
  c10::MempoolId_t* graph_pool;  // null: its work is not captured as graphs
  PinnedMessages* messages;      // if it exchanges messages with other processes; otherwise null
  MessageMemory* on_device;      // for a link that may send from device to device; otherwise null
};

/// Shared by the workers that work with other processes.
struct OtherProcesses {
  const StageShares& shares;
  Agreement& agreement;
};

/// Requires: all that it refers to outlives it.
class AcceleratorDevice final : public runtime::Device {
 public:
  AcceleratorDevice(const exe::Executable& executable, int32_t worker, const WorkerParts& parts,
                    std::vector<kernels::Hyper>& hypers, GradientCount& gradients, StepEvents& events, Staging& staging,
                    const OtherProcesses& others, const DeviceOptions& options, const StepProfile& profile);
  void attach() override;
  void detach() override;
  void run(const runtime::ActionContext& context) override;

 private:
  std::unique_ptr<Call> makeProcessCall(const exe::Instruction& instruction, const WorkerParts& parts,
                                        const OtherProcesses& others) const;
  void awaitOthers(const exe::Action& action);
  void runCalls(const runtime::ActionContext& context);

  const exe::Executable& executable_;
  const exe::WorkerProgram& program_;
  int32_t worker_;
  int64_t process_;  // as in Executable::globalMicroBatch
  bool adds_up_;     // with other processes
  StepEvents& events_;
  Staging& staging_;
  WorkerStreams streams_;
  OffChipWindow* window_;
  int32_t space_;
  bool waits_for_messages_;           // messages that go from device to device
  int host_threads_;                  // for a worker on the host; 0: it is on a device
  std::optional<c10::Event> met_[2];  // for a link between two devices: its streams wait for each other before and
                                      // after its copies
  std::vector<std::vector<const exe::Action*>>
      actions_;  // by segment and micro-batch; empty for segments of other workers
  WorkerCalls calls_;
  std::optional<SegmentGraphs> graphs_;  // graphs of calls_
};

}  // namespace abele::device

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

#include "runtime/backend.h"
#include "runtime/device/accelerator/off_chip_window.h"
#include "runtime/device/accelerator/places.h"
#include "runtime/device/accelerator/random_position.h"
#include "runtime/device/accelerator/segment_graphs.h"
#include "runtime/device/aten/arena.h"
#include "runtime/device/aten/gradient_count.h"
#include "runtime/device/aten/worker_calls.h"
#include "runtime/device/backend.h"
#include "runtime/kernels/optimizers.h"

namespace abele::runtime {

/// What the workers of a step tell each other's streams. A worker records before it adds to the runtime's counter, and
/// another one looks after it has seen the counter: events need no lock. Workers without a stream record nothing: their
/// work is done when the counter says so.
class StepEvents {
 public:
  StepEvents(const exe::Executable& executable, const Places& places, c10::DeviceType type);
  void begin();
  /// Goes on when a segment was completed as often as the wait says in this step: the stream; without one, the host.
  void await(const exe::Wait& wait, const std::optional<c10::Stream>& stream) const;
  /// The worker has enqueued all of a segment once more.
  void record(int32_t segment, const c10::Stream& stream);
  /// When the step's inputs are in a memory space.
  c10::Event& inputs(int32_t space) { return inputs_[static_cast<size_t>(space)]; }

  /// The host waits for what an update depends on, once for each group of micro-batches: what a kernel of any device
  /// threw until then stops every worker before it updates anything. Throws it. stream: the worker's, on which the
  /// update's waits are enqueued.
  void requireNoError(int32_t micro_batch, const std::optional<c10::Stream>& stream);

 private:
  const Places& places_;
  std::vector<c10::Event> inputs_;                  // by space
  std::vector<std::vector<c10::Event>> completed_;  // by segment, in order
  std::vector<size_t> counts_;                      // of this step; each by its segment's worker
  std::mutex mutex_;
  int32_t checked_ = -1;  // guarded by mutex_, like the next: the micro-batch that was waited for last
  std::exception_ptr error_;
};

/// Where a worker enqueues: on its device, and, a link, on the device that it brings values from. None on the host.
struct WorkerStreams {
  std::optional<c10::Stream> own, source;
};

/// Everything it refers to outlives it. window: where the worker uses off-chip memory on the device; null: nowhere.
/// large_gradients: where it counts for automatic loss scaling; undefined: nowhere.
class AcceleratorDevice final : public Device {
 public:
  AcceleratorDevice(const exe::Executable& executable, int32_t worker, const SlotTable& slots, OffChipWindow* window,
                    std::vector<Hyper>& hypers, RandomPosition& random, GradientCount& gradients, StepEvents& events,
                    const WorkerStreams& streams, const at::Tensor& large_gradients, const DeviceOptions& options,
                    const StepProfile& profile);
  void attach() override;
  void run(const ActionContext& context) override;

 private:
  void awaitOthers(const exe::Action& action);
  void runCalls(const ActionContext& context);

  const exe::Executable& executable_;
  const exe::WorkerProgram& program_;
  StepEvents& events_;
  WorkerStreams streams_;
  OffChipWindow* window_;
  int32_t space_;
  int host_threads_;                  // of a worker on the host; 0: it is on a device
  std::optional<c10::Event> met_[2];  // of a link between two devices: its streams meet before and behind its copies
  std::vector<std::vector<const exe::Action*>>
      actions_;  // by segment and micro-batch; those of other workers are empty
  WorkerCalls calls_;
  std::optional<SegmentGraphs> graphs_;  // of calls_
};

}  // namespace abele::runtime

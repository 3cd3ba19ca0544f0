// One worker's share of an executable on an accelerator: a stream, and its segments as ready calls.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "runtime/backend.h"
#include "runtime/device/accelerator/random_position.h"
#include "runtime/device/aten/arena.h"
#include "runtime/device/aten/gradient_count.h"
#include "runtime/device/aten/worker_calls.h"
#include "runtime/device/backend.h"
#include "runtime/kernels/optimizers.h"

namespace abele::runtime {

/// What the workers of a step tell each other's streams. A worker records before it adds to the runtime's counter, and
/// another one looks after it has seen the counter: events need no lock.
class StepEvents {
 public:
  StepEvents(const exe::Executable& executable, c10::DeviceType type);
  void begin();
  /// A stream goes on when a segment was completed so many times in this step.
  void block(const exe::Wait& wait, const c10::Stream& stream) const;
  /// The worker has enqueued all of a segment once more.
  void record(int32_t segment, const c10::Stream& stream);
  /// When the step's inputs are on the device.
  c10::Event& inputs() { return inputs_; }

  /// The host waits for what an update depends on, once for each group of micro-batches: what a kernel threw until then
  /// stops every worker before it updates anything. Throws it.
  void requireNoError(int32_t micro_batch, const c10::Stream& stream);

 private:
  c10::Event inputs_;
  std::vector<std::vector<c10::Event>> completed_;  // by segment, in order
  std::vector<size_t> counts_;                      // of this step; each by its segment's worker
  std::mutex mutex_;
  int32_t checked_ = -1;  // guarded by mutex_, like the next: the micro-batch that was waited for last
  std::exception_ptr error_;
};

/// Everything it refers to outlives it.
class AcceleratorDevice final : public Device {
 public:
  AcceleratorDevice(const exe::Executable& executable, int32_t worker, const SlotTable& slots,
                    std::vector<Hyper>& hypers, RandomPosition& random, GradientCount& gradients, StepEvents& events,
                    const c10::Stream& stream, Watch* watch);
  void attach() override {}
  void run(const ActionContext& context) override;

 private:
  const exe::Executable& executable_;
  StepEvents& events_;
  c10::Stream stream_;
  std::vector<std::vector<const exe::Action*>>
      actions_;  // by segment and micro-batch; those of other workers are empty
  WorkerCalls calls_;
};

}  // namespace abele::runtime

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
#include "runtime/device/accelerator/pinned_messages.h"
#include "runtime/device/accelerator/places.h"
#include "runtime/device/accelerator/random_position.h"
#include "runtime/device/accelerator/segment_graphs.h"
#include "runtime/device/accelerator/staging.h"
#include "runtime/device/aten/arena.h"
#include "runtime/device/aten/gradient_count.h"
#include "runtime/device/aten/worker_calls.h"
#include "runtime/device/backend.h"
#include "runtime/device/processes/agreement.h"
#include "runtime/device/processes/stage_shares.h"
#include "runtime/kernels/optimizers.h"

namespace abele::runtime {

/// What the workers of a step tell each other's streams. A worker records before it adds to the runtime's counter, and
/// another one looks after it has seen the counter: events need no lock. Workers without a stream record nothing: their
/// work is done when the counter says so.
class StepEvents {
 public:
  /// stage_process: as of Places; what workers of others do is known by their messages.
  StepEvents(const exe::Executable& executable, int64_t stage_process, const Places& places, c10::DeviceType type);
  void begin();
  /// Goes on when a segment was completed as often as the wait says in this step: the stream; without one, the host.
  void await(const exe::Wait& wait, const std::optional<c10::Stream>& stream) const;
  /// The worker has enqueued all of a segment once more.
  void record(int32_t segment, const c10::Stream& stream);
  /// When a memory space is as the step begins.
  c10::Event& begun(int32_t space) { return begun_[static_cast<size_t>(space)]; }

  /// The host waits for what an update depends on, once for each group of micro-batches: what a kernel of any device
  /// threw until then stops every worker before it updates anything. Throws it. stream: the worker's, on which the
  /// update's waits are enqueued.
  void requireNoError(int32_t micro_batch, const std::optional<c10::Stream>& stream);

 private:
  const Places& places_;
  std::vector<char> is_here_;                       // by segment
  std::vector<c10::Event> begun_;                   // by space
  std::vector<std::vector<c10::Event>> completed_;  // by segment, in order
  std::vector<size_t> counts_;                      // of this step; each by its segment's worker
  std::mutex mutex_;
  int32_t checked_ = -1;  // guarded by mutex_, like the next: the micro-batch that was waited for last
  std::exception_ptr error_;
};

/// Where a worker enqueues: on its device, and, a link, on the device that it brings values from. None on the host.
/// others: of one that adds up sums with other processes, on the further devices of its process.
struct WorkerStreams {
  std::optional<c10::Stream> own, source;
  std::vector<c10::Stream> others = {};
};

/// Memory of a device that copies between two frames of the host's memory go through, one after the other, so that
/// streams make them. As large as the largest of them.
class Passage {
 public:
  /// On the current stream of the device, as all that uses it. Its contents last until the next call.
  at::Tensor tensor(const Type& type, c10::Device device);
  int64_t bytes() const { return memory_.defined() ? static_cast<int64_t>(memory_.nbytes()) : 0; }

 private:
  at::Tensor memory_;
};

/// What a worker has of its own beside its calls; all of it stays with the backend.
struct WorkerParts {
  const SlotTable& slots;
  OffChipWindow* window;  // where it uses off-chip memory on the device; null: nowhere
  RandomPosition& random;
  WorkerStreams streams;
  at::Tensor large_gradients;  // where it counts for automatic loss scaling; undefined: nowhere
  Passage& passage;
  c10::MempoolId_t& graph_pool;
  PinnedMessages* messages;  // of one that works with other processes; null for others
  MessageMemory* on_device;  // of a link that may hand over from device to device; null for others
};

/// What the workers that work with other processes share.
struct OtherProcesses {
  const StageShares& shares;
  Agreement& agreement;
};

/// Everything it refers to outlives it.
class AcceleratorDevice final : public Device {
 public:
  AcceleratorDevice(const exe::Executable& executable, int32_t worker, const WorkerParts& parts,
                    std::vector<Hyper>& hypers, GradientCount& gradients, StepEvents& events, Staging& staging,
                    const OtherProcesses& others, const DeviceOptions& options, const StepProfile& profile);
  void attach() override;
  void run(const ActionContext& context) override;

 private:
  std::unique_ptr<Call> makeProcessCall(const exe::Instruction& instruction, const WorkerParts& parts,
                                        const OtherProcesses& others) const;
  void awaitOthers(const exe::Action& action);
  void runCalls(const ActionContext& context);

  const exe::Executable& executable_;
  const exe::WorkerProgram& program_;
  int32_t worker_;
  int64_t process_;  // as of Executable::globalMicroBatch
  bool adds_up_;     // sums, with other processes
  StepEvents& events_;
  Staging& staging_;
  WorkerStreams streams_;
  OffChipWindow* window_;
  int32_t space_;
  bool waits_for_messages_;           // that go from device to device
  int host_threads_;                  // of a worker on the host; 0: it is on a device
  std::optional<c10::Event> met_[2];  // of a link between two devices: its streams meet before and behind its copies
  std::vector<std::vector<const exe::Action*>>
      actions_;  // by segment and micro-batch; those of other workers are empty
  WorkerCalls calls_;
  std::optional<SegmentGraphs> graphs_;  // of calls_
};

}  // namespace abele::runtime

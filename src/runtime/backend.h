// What a kind of device offers the runtime. Torch-free; each backend is a folder under device/ (cpu, null).
#pragma once

#include <cstdint>
#include <memory>

#include "exe/executable.h"

namespace abele::runtime {

/// Where a worker stands in a step.
struct ActionContext {
  int32_t worker = 0;
  int32_t segment = 0;
  int32_t micro_batch = 0;  // within the step
  int32_t group_index = 0;  // position in its accumulation group, 0-based
  int64_t step = 0;         // steps completed before this one
};

/// One worker's view of the device; used by its thread only.
class Device {
 public:
  virtual ~Device() = default;
  /// Called once on the worker's thread before anything runs.
  virtual void attach() = 0;
  /// Runs all instructions of a segment. Throws what the kernel threw.
  virtual void run(const ActionContext& context) = 0;
};

/// Owns the memory of a loaded executable and makes the devices. The executable outlives it.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::unique_ptr<Device> makeDevice(int32_t worker) = 0;
  /// Whether the calling thread is just like one that attach() prepared, so that a step's caller may do the work
  /// itself.
  virtual bool canWorkOnThisThread(int32_t /*worker*/) const { return false; }
  /// Whether off-chip memory comes and goes: then fetch and release are called from a thread of its own for each
  /// worker, in the order of its actions. A frame that is used without them is there all the same, later.
  virtual bool movesOffChipMemory() const { return false; }
  virtual void fetch(const exe::FrameUse& /*frame*/) {}
  virtual void release(const exe::FrameUse& /*frame*/) {}
  /// A step was aborted, on any thread: what waits for something outside of this process gives up.
  virtual void interrupt() {}
  /// Of an executable whose stages lie in several processes: this one has done all of the step but the last updates,
  /// none of which has begun. Called once a step, on any thread, while the workers wait. Throws: the step fails.
  virtual void agree() {}
  /// Before / after each step, on the caller's thread. finish(false): the step failed; put back what it half changed.
  virtual void begin(int64_t step) = 0;
  virtual void finish(bool completed) = 0;
};

}  // namespace abele::runtime

// The interface between the runtime and a kind of device. Torch-free; each backend is a folder under device/ (cpu,
// null).
#pragma once

#include <cstdint>
#include <memory>

#include "exe/executable.h"

namespace abele::runtime {

/// The position of a worker in a step.
struct ActionContext {
  int32_t worker = 0;
  int32_t segment = 0;
  int32_t micro_batch = 0;  // within the step
  int32_t group_index = 0;  // position in its accumulation group, counted from 0
  int64_t step = 0;         // steps completed before this one
};

/// One worker's part of the device. One thread uses it at a time.
class Device {
 public:
  virtual ~Device() = default;
  /// Called on each thread before it works here, and again if it has worked elsewhere since.
  virtual void attach() = 0;
  /// Called on threads that worked here last, when the program ends.
  virtual void detach() {}
  /// Runs all instructions of a segment. Errors of kernels pass through.
  virtual void run(const ActionContext& context) = 0;
};

/// Owns the memory of a loaded executable and makes the devices. Requires: the executable outlives it.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::unique_ptr<Device> makeDevice(int32_t worker) = 0;
  /// True if the calling thread is prepared just as attach() prepares a worker's thread, so that the step's caller may
  /// do the worker's actions itself.
  virtual bool canWorkOnThisThread(int32_t /*worker*/) const { return false; }
  /// True if off-chip memory moves. Then each worker has a thread that calls fetch and release in the order of the
  /// worker's actions. A frame that was not fetched can still be used, but its first use is slower.
  virtual bool movesOffChipMemory() const { return false; }
  virtual void fetch(const exe::FrameUse& /*frame*/) {}
  virtual void release(const exe::FrameUse& /*frame*/) {}
  /// Called on any thread when a step is aborted: calls that wait for something outside this process must return.
  virtual void interrupt() {}
  /// For an executable whose stages are in several processes. Called once in each step, on any thread, when this
  /// process has done the whole step except the last updates. The workers wait meanwhile. If it throws, the step fails.
  virtual void agree() {}
  /// Called before and after each step, on the caller's thread. finish(false): the step failed, so finish() restores
  /// all that the step has changed.
  virtual void begin(int64_t step) = 0;
  virtual void finish(bool completed) = 0;
};

}  // namespace abele::runtime

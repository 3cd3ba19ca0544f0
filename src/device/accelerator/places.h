// The device of each memory space of an executable. Used by the backend and staging.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include "device/aten/arena.h"
#include "exe/executable.h"

namespace abele::device {

/// A new stream of the device; nothing for the host.
std::optional<c10::Stream> newStream(c10::Device device);

/// A memory space: its device, the memory there, and a stream for copies between steps. The host has no stream; its
/// copies are done when a call returns. Threads: the caller's of the backend.
class Place {
 public:
  /// pinned: allocates host memory that devices copy from and to; may be null.
  Place(const exe::Executable& executable, int64_t stage_process, int32_t space, c10::Device device,
        c10::Allocator* pinned);

  c10::Device device() const { return device_; }
  bool isHost() const { return device_.is_cpu(); }
  /// Slots of off-chip groups are in the host's memory.
  SlotTable& slots() const { return *slots_; }
  const std::optional<c10::Stream>& copies() const { return copies_; }
  /// Adds a table of a worker in this space. Requires: the table outlives the last call of bindOutput().
  void addTable(SlotTable& table) { of_workers_.push_back(&table); }
  /// Calls SlotTable::bindOutput() for all tables in this space.
  void bindOutput(int32_t slot, int64_t frame, const at::Tensor& tensor) const;

  /// Calls fn with this stream as the current one, so that fn enqueues there.
  template <class Fn>
  auto work(Fn fn) const {
    const c10::InferenceMode no_autograd;
    const c10::OptionalStreamGuard on_copies(copies_);
    return fn();
  }
  /// Waits for the stream. Throws the error of a kernel that failed on the device.
  void wait() const {
    if (copies_) copies_->synchronize();
  }
  /// For a caller's tensor on a device: work enqueued here from now on waits for the caller's current stream.
  void waitForCaller(const at::Tensor& tensor) const;

 private:
  c10::Device device_;
  std::optional<c10::Stream> copies_;
  std::unique_ptr<SlotTable> slots_;
  std::vector<SlotTable*> of_workers_;
};

/// All memory spaces of an executable, and the host memory of off-chip groups. Each space can address the memory of the
/// others, because links read it.
class Places {
 public:
  /// devices: by memory space, repeated for further spaces. stage_process: the index of this process in
  /// Executable::stage_processes; spaces of other processes have no memory here. Throws E0603, E0605.
  Places(const exe::Executable& executable, int64_t stage_process, const std::vector<c10::Device>& devices,
         const OffChipStorage& off_chip);

  const SlotTable& offChip() const { return *off_chip_; }

  std::size_t size() const { return places_.size(); }
  Place& at(int32_t space) { return places_[static_cast<std::size_t>(space)]; }
  const Place& at(int32_t space) const { return places_[static_cast<std::size_t>(space)]; }
  const Place& ofWorker(int32_t worker) const {
    return at(executable_.workers[static_cast<std::size_t>(worker)].space);
  }
  const Place& ofGroup(int32_t group) const { return at(SlotTable::spaceOf(executable_, group)); }
  bool isHere(int32_t slot) const {
    const int32_t process = executable_.processOf(executable_.slots[static_cast<std::size_t>(slot)].group);
    return process < 0 || process == stage_process_;
  }
  const Place& ofSlot(int32_t slot) const { return ofGroup(executable_.slots[static_cast<std::size_t>(slot)].group); }
  std::vector<Place>::const_iterator begin() const { return places_.begin(); }
  std::vector<Place>::const_iterator end() const { return places_.end(); }

 private:
  // Moves numbers that the host computes with into the host's memory.
  void placeNumbers();

  const exe::Executable& executable_;
  const int64_t stage_process_;
  std::vector<Place> places_;
  std::unique_ptr<SlotTable> off_chip_;
};

}  // namespace abele::device

// Parameters of the model that the devices of this process use in place, instead of copies.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "device/backend.h"
#include "memory/private_memory.h"

namespace abele::session {

/// The externals of a loaded program that are in the memory of the model's own tensors. Threads: owner only.
class SharedWeights {
 public:
  /// Shares nothing at first. owner, goes_first: as in MemoryClaims. Requires: backend outlives this object.
  SharedWeights(device::DeviceBackend& backend, const void* owner, bool goes_first)
      : backend_(backend), claims_(owner, goes_first) {}

  /// Makes the device use this memory, if possible. The memory must belong to this process and to no other owner, be
  /// dense, and be writable if the program writes it. Returns true if the device uses it. Otherwise the device has its
  /// own memory, with the old contents.
  bool place(size_t external, const at::Tensor& memory);
  bool contains(size_t external) const { return external < places_.size() && places_[external].memory.defined(); }

  /// Lets the next place() read the map of the process's memory again.
  void lookAgain() { memory_.reset(); }
  /// Called before a step: if a tensor's storage has a new address, makes the devices use it. Throws E0704 for memory
  /// that was freed.
  void follow(const std::vector<exe::External>& externals);
  /// Tensors of the model that now have other memory than the device uses, for example after torch::load, Module::to or
  /// set_data.
  std::vector<size_t> elsewhere(const std::vector<at::Tensor*>& model_of) const;
  /// The first external whose memory another owner has taken (MemoryClaims); -1: none.
  int64_t firstLost();
  /// Called after a step: increases the versions of changed tensors, for autograd.
  void noteUpdates(const std::vector<at::Tensor*>& model_of) const;
  /// Returns true if this tensor is in memory that a step changes.
  bool isChanged(const at::Tensor& tensor) const;
  int64_t bytes() const;

 private:
  struct Place {
    at::Tensor memory;              // undefined: not shared
    const void* address = nullptr;  // address that the device uses
    bool is_written = false;        // the program writes it
  };
  static bool isSame(const at::Tensor& a, const at::Tensor& b);
  bool isThere(const Place& place, const at::Tensor& memory) const;
  void drop(size_t external);

  device::DeviceBackend& backend_;
  memory::MemoryClaims claims_;
  std::vector<Place> places_;  // by external
  std::optional<memory::PrivateMemory> memory_;
};

}  // namespace abele::session

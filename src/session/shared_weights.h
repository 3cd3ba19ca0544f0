// Parameters of the model that the devices of this process work on where they are, instead of on copies.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/device/backend.h"
#include "runtime/memory/private_memory.h"

namespace abele::host {

/// Which externals of a loaded program lie in the memory of the model's own tensors. Threads: owner only.
class SharedWeights {
 public:
  /// Shares nothing at first. owner: as MemoryClaims. backend: outlives this.
  SharedWeights(runtime::DeviceBackend& backend, const void* owner) : backend_(backend), claims_(owner) {}

  /// The device works in this memory from now on, if it may: it must be this process's own, writable where the program
  /// writes it, dense, and no other owner's. Returns whether it does; if not, it has memory of its own, with old
  /// contents.
  bool place(size_t external, const at::Tensor& memory);
  bool contains(size_t external) const { return external < places_.size() && places_[external].memory.defined(); }

  /// The next place() looks at the process's memory anew.
  void lookAgain() { memory_.reset(); }
  /// Before a step: follows memory that was moved (its storage has another address). Throws E0704 for memory that was
  /// freed.
  void follow(const std::vector<exe::External>& externals);
  /// Which of the model's tensors were given other memory than the device works in (torch::load, Module::to,
  /// set_data).
  std::vector<size_t> elsewhere(const std::vector<at::Tensor*>& model_of) const;
  /// After a step: autograd shall know that these tensors changed.
  void noteUpdates(const std::vector<at::Tensor*>& model_of) const;
  /// Does this tensor lie in memory that a step changes?
  bool isChanged(const at::Tensor& tensor) const;
  int64_t bytes() const;

 private:
  struct Place {
    at::Tensor memory;              // undefined: not shared
    const void* address = nullptr;  // where the device has it
    bool is_written = false;        // by the program
  };
  static bool isSame(const at::Tensor& a, const at::Tensor& b);
  static bool isThere(const Place& place, const at::Tensor& memory);
  void drop(size_t external);

  runtime::DeviceBackend& backend_;
  runtime::MemoryClaims claims_;
  std::vector<Place> places_;  // by external
  std::optional<runtime::PrivateMemory> memory_;
};

}  // namespace abele::host

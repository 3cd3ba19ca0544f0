// Finds tensors that share memory with the model's tensors through another storage: an array or a pointer (numpy,
// DLPack) of a model tensor that became a tensor again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include <ATen/core/TensorBase.h>

namespace abele::capture {

/// Threads: owner only.
class MemoryOfModel {
 public:
  /// index: the tensor's index in Request::model.
  void add(const at::TensorBase& tensor, int32_t index);
  /// The first tensor of the model that has bytes in common with this one, and another storage.
  std::optional<int32_t> sharedBy(const at::TensorBase& tensor) const;

 private:
  struct Range {
    uintptr_t end = 0;
    const c10::StorageImpl* storage = nullptr;
    int32_t index = 0;
  };
  std::multimap<uintptr_t, Range> by_begin_;
  uintptr_t longest_ = 0;  // bytes of the longest range
};

}  // namespace abele::capture

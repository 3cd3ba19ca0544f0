// Tensors on the meta device, which have a type and a shape and no memory: models that are made before anybody knows
// where their weights go.
#pragma once

#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace abele::host {

/// Gives a tensor other memory, which may be of another device. Views of the tensor keep the old memory.
void setMemory(const at::Tensor& tensor, const c10::Storage& storage);

/// Gives the tensors among these that are on the meta device memory of the host, with contents that nobody has set.
/// Tensors that shared a storage share it again. Memory that nobody touches takes no room.
/// Returns: the tensors and what they had before, for takeMemory().
struct Memories {
  std::vector<std::pair<at::Tensor, c10::Storage>> before;
};
Memories giveMemory(const std::vector<at::Tensor>& tensors);
/// Undoes giveMemory(): the tensors have their earlier memory again.
void takeMemory(const Memories& memories);

/// Memory that reads as zeros and takes no room until somebody writes.
c10::Storage zeros(int64_t bytes);

}  // namespace abele::host

// Tensors on the meta device, which have a type and a shape and no memory: models that are made before anybody knows
// where their weights go.
#pragma once

#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace abele::host {

/// Exchanges the memory of a tensor, also for that of another device. Views of it keep theirs.
void setMemory(const at::Tensor& tensor, const c10::Storage& storage);

/// Gives tensors that are on the meta device memory of the host, with contents that nobody has set; those that shared a
/// storage share it again. Nothing happens to others. Memory that nobody touches takes no room.
/// Returns: the tensors and what they had before, for takeMemory().
struct Memories {
  std::vector<std::pair<at::Tensor, c10::Storage>> before;
};
Memories giveMemory(const std::vector<at::Tensor>& tensors);
/// They have again what they had.
void takeMemory(const Memories& memories);

/// Memory that reads as zeros and takes no room until somebody writes.
c10::Storage zeros(int64_t bytes);

}  // namespace abele::host

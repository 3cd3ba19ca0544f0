// Tensors on the meta device, which have a type and a shape and no memory: a model may be made before it is known where
// its weights will be.
#pragma once

#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace abele::compile {

/// Gives a tensor other memory, also of another device. Views of the tensor keep the old memory.
void setMemory(const at::Tensor& tensor, const c10::Storage& storage);

/// Gives host memory with undefined contents to those tensors that are on the meta device. Tensors that shared a
/// storage share it again. Memory takes no room before the first access. Returns: the tensors and their earlier memory,
/// for takeMemory().
struct Memories {
  std::vector<std::pair<at::Tensor, c10::Storage>> before;
};
Memories giveMemory(const std::vector<at::Tensor>& tensors);
/// Undoes giveMemory(): the tensors have their earlier memory again.
void takeMemory(const Memories& memories);

/// Memory that reads as zeros and takes no room until a write.
c10::Storage zeros(int64_t bytes);

}  // namespace abele::compile

// Host tensors in a file without a name, which take no memory of the process until they are used.
#pragma once

#include <string>
#include <vector>

namespace at {
class Tensor;
}  // namespace at

namespace abele::memory {

/// Moves the storages of CPU tensors into one such file. Tensors, views and sharing stay as they are, and the tensors
/// take no memory until they are touched. As after Tensor.share_memory_(), processes that are forked later share them.
/// folder: empty for the system's temporary folder. Throws E0605; in that case moves nothing.
void offload(const std::vector<at::Tensor>& tensors, const std::string& folder);
bool isOffloaded(const at::Tensor& tensor);
/// Removes a tensor that offload() moved from the process's resident set; does nothing to other tensors.
void releaseIfOffloaded(const at::Tensor& tensor);

}  // namespace abele::memory

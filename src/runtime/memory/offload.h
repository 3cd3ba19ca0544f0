// Host tensors in a file without a name, out of the process's memory while nobody looks at them.
#pragma once

#include <string>
#include <vector>

namespace at {
class Tensor;
}  // namespace at

namespace abele::runtime {

/// Moves the storages of CPU tensors into one such file; tensors, views and sharing stay as they are, and the tensors
/// take no memory until somebody touches them. As after Tensor.share_memory_(), processes forked later share them.
/// folder: empty for the system's temporary one. Throws E0605; nothing is moved then.
void offload(const std::vector<at::Tensor>& tensors, const std::string& folder);
bool isOffloaded(const at::Tensor& tensor);
/// Takes a tensor that offload() moved out of the process's memory again; nothing happens to others.
void releaseIfOffloaded(const at::Tensor& tensor);

}  // namespace abele::runtime

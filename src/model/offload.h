// The user's own tensors in a file: runtime/memory/offload.h for the layers above this one.
#pragma once

#include <string>
#include <vector>

namespace at {
class Tensor;
}  // namespace at

namespace abele::host {

/// Throws E0605; nothing is moved then.
void offload(const std::vector<at::Tensor>& tensors, const std::string& folder);

}  // namespace abele::host

#include "files/offload.h"

#include <ATen/core/Tensor.h>

#include "memory/offload.h"

namespace abele::files {

void offload(const std::vector<at::Tensor>& tensors, const std::string& folder) { memory::offload(tensors, folder); }

}  // namespace abele::files

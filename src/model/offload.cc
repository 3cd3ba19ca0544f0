#include "model/offload.h"

#include <ATen/core/Tensor.h>

#include "runtime/memory/offload.h"

namespace abele::host {

void offload(const std::vector<at::Tensor>& tensors, const std::string& folder) { runtime::offload(tensors, folder); }

}  // namespace abele::host

// abele::offload: a module's tensors in a file.
#include <ATen/core/Tensor.h>

#include "abele/model.h"
#include "host/offload.h"
#include "host/public_access.h"
#include "runtime/device/cpu/offload.h"

namespace abele {

void host::offload(const std::vector<at::Tensor>& tensors, const std::string& folder) {
  runtime::offload(tensors, folder);
}

void offload(torch::nn::Module& module, const std::string& folder) {
  std::vector<at::Tensor> tensors;
  for (const host::NamedTensor& named : host::tensorsOf(module)) tensors.push_back(named.tensor);
  host::offload(tensors, folder);
}

}  // namespace abele

// abele::offload: moves a module's tensors into a file.
#include <ATen/core/Tensor.h>

#include "abele/model.h"
#include "model/access.h"
#include "model/offload.h"

namespace abele {

void offload(torch::nn::Module& module, const std::string& folder) {
  std::vector<at::Tensor> tensors;
  for (const host::NamedTensor& named : host::tensorsOf(module)) tensors.push_back(named.tensor);
  host::offload(tensors, folder);
}

}  // namespace abele

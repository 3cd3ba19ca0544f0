// abele::offload: moves a module's tensors into a file.
#include <ATen/core/Tensor.h>

#include "abele/model.h"
#include "files/offload.h"
#include "modules/module.h"

namespace abele {

void offload(torch::nn::Module& module, const std::string& folder) {
  std::vector<at::Tensor> tensors;
  for (const modules::NamedTensor& named : modules::tensorsOf(module)) tensors.push_back(named.tensor);
  files::offload(tensors, folder);
}

}  // namespace abele

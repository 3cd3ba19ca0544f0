// The expert setting saveInitializersToFile: writes the weights that a program starts from.
// Form: the elements of every tensor of the model, row by row, tensor after tensor in the order of the model.
#include <fstream>

#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "compile/tensors.h"
#include "memory/offload.h"
#include "session/impl.h"

namespace abele::session {

void saveInitializers(const std::vector<capture::ModelTensor>& model, const std::string& path) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  for (const capture::ModelTensor& m : model) {
    if (!m.tensor->defined() || !m.tensor->device().is_cpu() || m.tensor->layout() != at::kStrided) continue;
    compile::requireMemory(*m.tensor, m.name);
    {
      const at::Tensor dense = m.tensor->detach().contiguous();
      file.write(static_cast<const char*>(dense.const_data_ptr()), static_cast<std::streamsize>(dense.nbytes()));
    }
    memory::releaseIfOffloaded(*m.tensor);
  }
  file.close();
  ABELE_REQUIRE(file, E0712,
                {.what = "the weights cannot be written to the file of saveInitializersToFile",
                 .at = path,
                 .remedy = "name a file in a folder that exists, or remove the setting"});
}

}  // namespace abele::session

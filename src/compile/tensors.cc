#include "compile/tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include "base/error.h"

namespace abele::compile {

Type typeOf(const at::Tensor& tensor) {
  Type type;
  if (!tensor.defined()) return type;
  type.dtype = static_cast<DType>(tensor.scalar_type());
  type.sizes = tensor.sizes().vec();
  type.strides = tensor.strides().vec();
  return type;
}

void requireMemory(const at::Tensor& tensor, const std::string& name) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.has_storage()) return;
  const auto needed = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                                       static_cast<size_t>(tensor.storage_offset()));
  ABELE_REQUIRE(tensor.storage().nbytes() >= needed, E0708,
                {.what = cat("the memory of ", name, " is smaller than its sizes"),
                 .at = name,
                 .found = cat(tensor.storage().nbytes(), " bytes"),
                 .expected = cat(needed, " bytes for ", typeOf(tensor).str()),
                 .remedy = "keep the storage of the tensor: do not resize or free it"});
}

void requireMemory(const std::vector<at::Tensor>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) requireMemory(inputs[i], cat("input ", i));
}

std::vector<at::Tensor> bindable(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> bound;
  for (const at::Tensor& input : inputs) bound.push_back(input.detach().resolve_conj().resolve_neg());
  return bound;
}

}  // namespace abele::compile

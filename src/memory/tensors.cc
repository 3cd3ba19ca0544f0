#include "memory/tensors.h"

#include <utility>

#include <c10/core/TensorOptions.h>

namespace abele::memory {

c10::ScalarType scalarType(DType dtype) { return static_cast<c10::ScalarType>(dtype); }

at::Tensor tensorOver(c10::DataPtr memory, const Type& type) {
  const c10::DispatchKeySet keys(c10::computeDispatchKey(scalarType(type.dtype), at::kStrided, memory.device()));
  c10::Storage storage(c10::Storage::use_byte_size_t{}, static_cast<std::size_t>(type.extentBytes()), std::move(memory),
                       /*allocator=*/nullptr, /*resizable=*/false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), keys, caffe2::TypeMeta::fromScalarType(scalarType(type.dtype)));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(type.sizes, type.strides);
  return tensor;
}

bool hasShape(const at::Tensor& tensor, const Type& type) {
  return tensor.scalar_type() == scalarType(type.dtype) && tensor.sizes() == c10::IntArrayRef(type.sizes);
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "none";
  return contiguousType(static_cast<DType>(tensor.scalar_type()), tensor.sizes().vec()).str();
}

bool isLaidOutAs(const at::Tensor& tensor, const Type& type) {
  for (std::size_t d = 0; d < type.sizes.size(); ++d)
    if (type.sizes[d] > 1 && tensor.stride(static_cast<int64_t>(d)) != type.strides[d]) return false;
  return true;
}

}  // namespace abele::memory

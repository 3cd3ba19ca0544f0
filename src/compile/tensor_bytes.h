// Tensors in the fields of a file: type, then elements in order. Used beside exe/bytes.h.
#pragma once

#include <cstring>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "exe/bytes.h"

namespace abele::compile {

/// Reads or writes one tensor, which may be undefined. Throws E0501 if sizes and bytes contradict each other.
template <class A>
void visitTensor(A& a, at::Tensor& tensor) {
  Type type;
  std::string bytes;
  if constexpr (!A::kReads) {
    if (tensor.defined()) {
      const at::Tensor dense = tensor.detach().contiguous();
      type = contiguousType(static_cast<DType>(dense.scalar_type()), dense.sizes().vec());
      bytes.assign(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
    }
  }
  visit(a, type);
  a(bytes);
  if constexpr (A::kReads) {
    tensor = at::Tensor();
    if (type.dtype == DType::kUndefined) {
      if (type != Type() || !bytes.empty()) exe::reject("an absent tensor with sizes or bytes");
      return;
    }
    // Limits dimensions to ATen's, and products of sizes to values that do not overflow, even next to a size of 0.
    constexpr int64_t kMostElements = int64_t{1} << 46;
    if (type.sizes.size() > 64) exe::reject("a tensor of too many dimensions");
    int64_t elements = 1, with_empty = 1;
    for (int64_t size : type.sizes) {
      if (__builtin_mul_overflow(with_empty, size > 0 ? size : 1, &with_empty) || with_empty > kMostElements)
        exe::reject("a tensor of impossible sizes");
      if (size < 0 || (size > 0 && elements > static_cast<int64_t>(bytes.size()) / size))
        exe::reject("a tensor whose sizes do not fit its bytes", type.str());
      elements *= size;
    }
    if (static_cast<uint64_t>(elements * elementBytes(type.dtype)) != bytes.size())
      exe::reject("a tensor whose sizes do not fit its bytes", type.str(), cat(bytes.size(), " bytes"));
    if (type.strides != contiguousType(type.dtype, type.sizes).strides) exe::reject("a tensor with gaps", type.str());
    // Refuses bools with other bytes than 0 and 1, because kernels add up the bytes of bools.
    if (type.dtype == DType::kBool && bytes.find_first_not_of(std::string_view("\0\1", 2)) != std::string::npos)
      exe::reject("a tensor of bool with an element that is neither 0 nor 1");
    tensor = at::empty(type.sizes, at::TensorOptions(static_cast<at::ScalarType>(type.dtype)));
    if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  }
}

}  // namespace abele::compile

// at::Tensor -> Type. Used in capture/ only; others cast DType numbers, which this file checks.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/ScalarType.h>

#include "base/type.h"

namespace abele::capture {

static_assert(static_cast<int>(DType::kUInt8) == static_cast<int>(c10::ScalarType::Byte));
static_assert(static_cast<int>(DType::kInt8) == static_cast<int>(c10::ScalarType::Char));
static_assert(static_cast<int>(DType::kInt16) == static_cast<int>(c10::ScalarType::Short));
static_assert(static_cast<int>(DType::kInt32) == static_cast<int>(c10::ScalarType::Int));
static_assert(static_cast<int>(DType::kInt64) == static_cast<int>(c10::ScalarType::Long));
static_assert(static_cast<int>(DType::kFloat16) == static_cast<int>(c10::ScalarType::Half));
static_assert(static_cast<int>(DType::kFloat32) == static_cast<int>(c10::ScalarType::Float));
static_assert(static_cast<int>(DType::kFloat64) == static_cast<int>(c10::ScalarType::Double));
static_assert(static_cast<int>(DType::kComplex32) == static_cast<int>(c10::ScalarType::ComplexHalf));
static_assert(static_cast<int>(DType::kComplex64) == static_cast<int>(c10::ScalarType::ComplexFloat));
static_assert(static_cast<int>(DType::kComplex128) == static_cast<int>(c10::ScalarType::ComplexDouble));
static_assert(static_cast<int>(DType::kBool) == static_cast<int>(c10::ScalarType::Bool));
static_assert(static_cast<int>(DType::kBFloat16) == static_cast<int>(c10::ScalarType::BFloat16));

/// Whether Type has this element type.
inline bool isKnown(c10::ScalarType type) {
  const int number = static_cast<int>(type);
  return (number >= 0 && number <= 11) || type == c10::ScalarType::BFloat16;
}

/// Requires: a defined, strided tensor of a known element type.
inline Type typeOf(const at::TensorBase& tensor) {
  return {static_cast<DType>(tensor.scalar_type()), tensor.sizes().vec(), tensor.strides().vec()};
}

}  // namespace abele::capture

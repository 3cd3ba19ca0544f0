// Element type, sizes and strides of a tensor, without LibTorch. Every layer uses it; see ir/graph.h first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace abele {

/// Element type. The numbers are those of c10::ScalarType, so a cast crosses the torch wall (checked in capture/).
enum class DType : int8_t {
  kUInt8 = 0,
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kFloat16 = 5,
  kFloat32 = 6,
  kFloat64 = 7,
  kComplex32 = 8,
  kComplex64 = 9,
  kComplex128 = 10,
  kBool = 11,
  kBFloat16 = 15,
  kUndefined = -1,  // an absent tensor, e.g. a gradient that was not requested
};

/// Bytes of one element; 0 for kUndefined. Throws E0201 for a type that this build does not know.
int64_t elementBytes(DType dtype);
bool isComplex(DType dtype);
/// Short name as in the text form: f32, i64, bool, bf16, none.
std::string_view dtypeName(DType dtype);
/// Inverse of dtypeName. Returns kUndefined for "none" and for unknown text; *known tells them apart.
DType parseDType(std::string_view text, bool* known = nullptr);

/// Element type, sizes and strides of a dense strided tensor. Strides count elements.
struct Type {
  DType dtype = DType::kUndefined;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  bool defined() const { return dtype != DType::kUndefined; }
  int64_t numel() const;
  /// Number of elements from the first to the last one in memory, gaps included; 0 if a size is 0.
  int64_t extent() const;
  int64_t extentBytes() const { return extent() * elementBytes(dtype); }
  bool isContiguous() const;
  /// "f32[4,8]" if contiguous, otherwise "f32[4,8]{1,4}"; "none" if undefined.
  std::string str() const;
  bool operator==(const Type&) const = default;
};

/// True for elements and sizes of a range of `whole` along `dim` that starts at `begin`. Strides do not matter.
bool isRangeOf(const Type& type, const Type& whole, int32_t dim, int64_t begin);

/// A contiguous type of these sizes.
Type contiguousType(DType dtype, std::vector<int64_t> sizes);

}  // namespace abele

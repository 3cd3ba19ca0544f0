#include "base/type.h"

#include <algorithm>
#include <array>

#include "base/cat.h"
#include "base/error.h"

namespace abele {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<DTypeRow, 14> kDTypes = {{
    {DType::kUInt8, "u8", 1},
    {DType::kInt8, "i8", 1},
    {DType::kInt16, "i16", 2},
    {DType::kInt32, "i32", 4},
    {DType::kInt64, "i64", 8},
    {DType::kFloat16, "f16", 2},
    {DType::kFloat32, "f32", 4},
    {DType::kFloat64, "f64", 8},
    {DType::kComplex32, "c32", 4},
    {DType::kComplex64, "c64", 8},
    {DType::kComplex128, "c128", 16},
    {DType::kBool, "bool", 1},
    {DType::kBFloat16, "bf16", 2},
    {DType::kUndefined, "none", 0},
}};

const DTypeRow& rowOf(DType dtype) {
  auto row = std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeRow& r) { return r.dtype == dtype; });
  ABELE_REQUIRE(row != kDTypes.end(), E0201,
                {.what = cat("element type number ", static_cast<int>(dtype), " is not supported"),
                 .expected = "u8 i8 i16 i32 i64 f16 f32 f64 c32 c64 c128 bool bf16",
                 .remedy = "convert the tensor with .to() before it enters the model"});
  return *row;
}

std::vector<int64_t> contiguousStrides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

void appendList(std::string& out, char open, const std::vector<int64_t>& numbers, char close) {
  out += open;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) out += ',';
    detail::append(out, numbers[i]);
  }
  out += close;
}

}  // namespace

int64_t elementBytes(DType dtype) { return rowOf(dtype).bytes; }

bool isComplex(DType dtype) {
  return dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
}

std::string_view dtypeName(DType dtype) { return rowOf(dtype).name; }

DType parseDType(std::string_view text, bool* known) {
  auto row = std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeRow& r) { return r.name == text; });
  if (known != nullptr) *known = row != kDTypes.end();
  return row == kDTypes.end() ? DType::kUndefined : row->dtype;
}

int64_t Type::numel() const {
  if (!defined()) return 0;
  int64_t product = 1;
  for (int64_t size : sizes) product *= size;
  return product;
}

int64_t Type::extent() const {
  if (numel() == 0) return 0;
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  return last + 1;
}

// As in ATen, the stride of a dimension of size 1 does not matter, nor do strides of a tensor without elements.
bool Type::isContiguous() const {
  if (numel() == 0) return true;
  int64_t expected = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

bool isRangeOf(const Type& type, const Type& whole, int32_t dim, int64_t begin) {
  const auto d = static_cast<size_t>(dim);
  if (dim < 0 || d >= whole.sizes.size() || type.sizes.size() != whole.sizes.size()) return false;
  std::vector<int64_t> sizes = whole.sizes;
  sizes[d] = type.sizes[d];
  return begin >= 0 && sizes[d] <= whole.sizes[d] - begin && type.sizes == sizes && type.dtype == whole.dtype;
}

// Strides are omitted only if they are exactly those of contiguousType, so the text loses nothing.
std::string Type::str() const {
  std::string out(dtypeName(dtype));
  if (!defined()) return out;
  appendList(out, '[', sizes, ']');
  if (strides != contiguousStrides(sizes)) appendList(out, '{', strides, '}');
  return out;
}

Type contiguousType(DType dtype, std::vector<int64_t> sizes) {
  Type type;
  type.dtype = dtype;
  type.strides = contiguousStrides(sizes);
  type.sizes = std::move(sizes);
  return type;
}

}  // namespace abele

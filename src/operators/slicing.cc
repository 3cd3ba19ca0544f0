// Slices at positions that are known only at run time, as gathers and scatters of ATen. Autograd makes their gradients.
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/narrow.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/slice.h>

#include "abele/ops.h"
#include "base/error.h"
#include "capture/annotate.h"

namespace abele::ops {
namespace {

void requireStart(const at::Tensor& start) {
  ABELE_REQUIRE(start.numel() == 1 && at::isIntegralType(start.scalar_type(), /*includeBool=*/false), E0708,
                {.what = "the start of a slice is not an integer tensor of one element",
                 .found = cat(c10::toString(start.scalar_type()), " of ", start.numel(), " elements")});
}

int64_t axisOf(const at::Tensor& tensor, int64_t dim) {
  ABELE_REQUIRE(dim >= -tensor.dim() && dim < tensor.dim(), E0708,
                {.what = cat("dimension ", dim, " of a tensor of rank ", tensor.dim())});
  return dim < 0 ? dim + tensor.dim() : dim;
}

/// The indices start, start + step, ... modulo the length.
at::Tensor window(const at::Tensor& start, int64_t size, int64_t step, int64_t length) {
  const at::Tensor offsets = at::arange(0, size, step, at::kLong);
  return at::remainder(at::add(start.reshape({1}).to(at::kLong), offsets), length);
}

}  // namespace

at::Tensor dynamicSlice(const at::Tensor& tensor, int64_t dim, const at::Tensor& start, int64_t size, int64_t step) {
  requireStart(start);
  const int64_t axis = axisOf(tensor, dim);
  const int64_t length = tensor.size(axis);
  ABELE_REQUIRE(size > 0 && step >= 1, E0708,
                {.what = cat("a slice of size ", size, " and step ", step), .expected = "size > 0, step >= 1"});
  if (capture::isCapturing()) {
    ABELE_REQUIRE(length % size == 0, E0708,
                  {.what = cat("a slice of ", size, " elements of a dimension of ", length),
                   .expected = "a size that divides it"});
    return sliceAt(tensor, axis, start, size, step);
  }
  const auto first = start.item<int64_t>();
  return at::slice(tensor, axis, first, first + size, step);
}

at::Tensor sliceAt(const at::Tensor& tensor, int64_t dim, const at::Tensor& start, int64_t size, int64_t step) {
  const int64_t axis = axisOf(tensor, dim);
  return at::index_select(tensor, axis, window(start, size, step, tensor.size(axis)));
}

at::Tensor dynamicUpdate(const at::Tensor& input, const at::Tensor& src, int64_t dim, const at::Tensor& start,
                         int64_t size) {
  requireStart(start);
  const int64_t axis = axisOf(input, dim);
  ABELE_REQUIRE(input.dim() == src.dim() && input.scalar_type() == src.scalar_type(), E0708,
                {.what = "an update with a tensor of another rank or element type",
                 .found = cat("rank ", src.dim(), ", ", c10::toString(src.scalar_type())),
                 .expected = cat("rank ", input.dim(), ", ", c10::toString(input.scalar_type()))});
  ABELE_REQUIRE(size > 0 && size <= src.size(axis) && size <= input.size(axis), E0708,
                {.what = cat("an update of ", size, " elements"),
                 .found = cat(src.size(axis), " elements for a dimension of ", input.size(axis)),
                 .expected = "0 < size <= both"});
  const at::Tensor source = src.size(axis) == size ? src : src.narrow(axis, 0, size);
  return at::index_copy(input, axis, window(start, size, 1, input.size(axis)), source);
}

}  // namespace abele::ops

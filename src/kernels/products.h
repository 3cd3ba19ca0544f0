// Products of float32 matrices, by ATen or by BLIS.
#pragma once

#include <cstdint>
#include <limits>

namespace at {
class Tensor;
}

namespace abele::kernels {

/// Writes left.mm(right) to `out`, or its sum with `term`, with the bits of ATen's mm or addmm. ATen's library adds the
/// terms of an element one after the other, in parts if there are many, and BLIS can do the same. BLIS computes the
/// product if it gives ATen's bits in a trial with random numbers and is clearly faster: at the first product of these
/// sizes, strides and alignment, with this number of intra-op threads. The choice is kept for the life of the process.
/// term: null, or a tensor in other memory that can be expanded to the shape of `out`. Threads: any.
void exactProduct(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right, const at::Tensor* term);

/// Adds left.mm(right) to `sum` with the bits of ATen's addmm. BLIS computes it if exactProduct chose BLIS for this
/// layout before and all terms are one part. Requires: ATen's addmm has the bits of a product that is added afterwards.
void addExactProduct(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right);

/// The same for Options.fusion("fast"), without regard to ATen's bits: BLIS computes the product, in the faster of its
/// ways, if it is clearly faster than ATen in a trial: at the first product of these sizes and strides, with this
/// number of intra-op threads. The choice is kept for the life of the process. All add k terms for an element, in
/// orders of their own, so each element is within k * u * sum |left| |right| of the real one, where u is half the
/// distance from 1 to the next number. Threads: any.
void fastProduct(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right, bool adds);

/// BLIS can read operands where they are, or copy them into packed blocks first. Copies pay off for large products, and
/// for transposed operands.
enum class BlisWay : uint8_t { kInPlace, kPacked };

/// The same by BLIS, without a trial. terms: it adds this many terms of an element one after the other, then the sum of
/// the next ones. Returns false and does nothing if BLIS cannot compute it: for other types than float32, for operands
/// in which neither rows nor columns are dense, and in builds without BLIS.
bool blisProduct(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right, bool adds, BlisWay way,
                 int64_t terms = std::numeric_limits<int64_t>::max());

/// The number of terms that ATen's library of products adds one after the other, if its longest part has this number.
int64_t termsOfPart(int64_t terms, int64_t longest);

}  // namespace abele::kernels

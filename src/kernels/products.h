// Products of float32 matrices for Options.fusion("fast").
#pragma once

#include <cstdint>

namespace at {
class Tensor;
}

namespace abele::kernels {

/// Writes left.mm(right) into `out`, or adds it to `out`. BLIS computes the product, in the faster of its ways, if it
/// is clearly faster than ATen in a trial: at the first product of these sizes and strides, with this number of
/// intra-op threads. The choice is kept for the life of the process. All add k terms for an element, in orders of their
/// own, so each element is within k * u * sum |left| |right| of the real one, where u is half the distance from 1 to
/// the next number. Threads: any.
void fastProduct(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right, bool adds);

/// BLIS can read operands where they are, or copy them into packed blocks first. Copies pay off for large products, and
/// for transposed operands.
enum class BlisWay : uint8_t { kInPlace, kPacked };

/// The same by BLIS, without a trial. Returns false and does nothing if BLIS cannot compute it: for other types than
/// float32, for operands in which neither rows nor columns are dense, and in builds without BLIS.
bool blisProduct(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right, bool adds, BlisWay way);

}  // namespace abele::kernels

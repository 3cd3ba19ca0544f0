// Operators that add a gradient to its sum while they make it, with the bits of eager's two steps: make the gradient,
// add it to the sum.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace abele::kernels {

/// Ways to add a product to a sum with the bits of making the product and then adding it. kInOne: one product adds to
/// the sum. kInPieces: pieces of the product are made and added one after the other. kApart: the whole product is made
/// in other memory.
enum class ProductWay : uint8_t { kInOne, kInPieces, kApart };

/// The first of these ways that gives the right bits. A product over short rows is complete before it meets the sum,
/// but one over long rows is made in parts, and the library decides which rows are long. So each way is tried with
/// random numbers, on operands of these sizes, strides, alignment and types, with this thread's number of threads. The
/// answer is kept for the process. sum_is_free: the trial may write into `sum`; otherwise it needs memory of the same
/// size for a moment.
ProductWay wayOfProduct(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right, bool sum_is_free);

/// sum += left.mm(right). reorders: always uses one product, without a trial. After n products over rows of k, each
/// element of the sum is then within (n * k + n) * u * sum |left| |right| of the real one, where u is half the distance
/// from 1 to the next number.
class ProductSum {
 public:
  explicit ProductSum(bool reorders) {
    if (reorders) way_ = ProductWay::kInOne;
  }
  /// first: the sum starts with this product, and its old contents are overwritten. The operands of all calls are
  /// alike, and so is the number of threads.
  void add(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right, bool first);

 private:
  std::optional<ProductWay> way_;  // the answer of the trial
};

/// sum += embedding_dense_backward(gradient, indices, rows of sum, padding, false). It touches only the rows that the
/// indices name: the others would get +0, which changes no sum that began with +0. Requires: float32, dense; indices
/// int64 or int32.
class RowSum {
 public:
  void add(const at::Tensor& sum, const at::Tensor& gradient, const at::Tensor& indices, int64_t padding, bool first);

 private:
  std::vector<std::pair<int64_t, int64_t>> order_;  // (row, position in the gradient), ascending
  std::vector<int64_t> begins_;                     // begin of each row in order_
};

}  // namespace abele::kernels

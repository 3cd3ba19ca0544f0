// Operators that compute a gradient and add it to its sum in one step, with the bits of eager's two steps.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace abele::kernels {

/// Ways to add a matrix product to a sum with the bits of computing the product first and then adding it. kInOne: one
/// call multiplies and adds. kInPieces: pieces of the product are computed and added one after the other. kApart: the
/// whole product is computed in other memory.
enum class ProductWay : uint8_t { kInOne, kInPieces, kApart };

/// The first of these ways that gives the right bits. The library computes a product over short rows completely before
/// it adds the sum, but one over long rows in parts, and only the library knows which rows are long. Each way is
/// therefore tried with random numbers, on operands of these sizes, strides, alignment and types, with this thread's
/// number of intra-op threads. The result is kept for the life of the process. sum_is_free: the trial may write into
/// `sum`; otherwise the trial needs memory of the same size.
ProductWay wayOfProduct(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right, bool sum_is_free);

/// sum += left.mm(right). reorders: always uses one product, on a CPU fastProduct. After n products over rows of
/// k, each element of the sum is then within (n * k + n) * u * sum |left| |right| of the real one, where u is
/// half the distance from 1 to the next number.
class ProductSum {
 public:
  explicit ProductSum(bool reorders) : reorders_(reorders) {
    if (reorders) way_ = ProductWay::kInOne;
  }
  /// first: overwrites the sum with this product. Requires: all calls have operands of the same layout and the same
  /// number of threads.
  void add(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right, bool first);

 private:
  bool reorders_;
  std::optional<ProductWay> way_;  // the result of the trial
};

/// sum += embedding_dense_backward(gradient, indices, rows of sum, padding, false). Changes only the rows of the
/// indices: all others would get +0, which does not change a sum that started with +0. Requires: float32, dense;
/// indices int64 or int32.
class RowSum {
 public:
  void add(const at::Tensor& sum, const at::Tensor& gradient, const at::Tensor& indices, int64_t padding, bool first);

 private:
  std::vector<std::pair<int64_t, int64_t>> order_;  // (row, position in the gradient), ascending
  std::vector<int64_t> begins_;                     // begin of each row in order_
};

}  // namespace abele::kernels

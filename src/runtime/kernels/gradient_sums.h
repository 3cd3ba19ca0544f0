// Gradients added up by what makes them, with the bits of eager's two steps: make the gradient, add it to the sum.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace abele::runtime {

/// How a product is added to a sum with the bits of making it and adding it: one product adds to the sum; pieces of the
/// product are made and added, one after the other; or the whole product is made beside the sum.
enum class ProductWay : uint8_t { kInOne, kInPieces, kApart };

/// The first of these ways that gives the bits. A product over short rows is complete before it meets the sum, one over
/// long rows is made in parts, and the library decides what is long: so it is tried, with random numbers on operands of
/// these sizes, strides, alignment and types, with this thread's number of threads, and kept for the process.
/// sum_is_free: the trial may write there; else it takes as much memory for a moment.
ProductWay wayOfProduct(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right, bool sum_is_free);

/// sum += left.mm(right). reorders: always one product, without a trial. After n of them over rows of k each element of
/// the sum is then within (n * k + n) * u * sum |left| |right| of the real one, u being half the distance from 1 to the
/// next number.
class ProductSum {
 public:
  explicit ProductSum(bool reorders) {
    if (reorders) way_ = ProductWay::kInOne;
  }
  /// first: the sum starts with this product, and what its memory held is gone. The operands of all calls are alike,
  /// and so is the number of threads.
  void add(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right, bool first);

 private:
  std::optional<ProductWay> way_;  // what the trial said
};

/// sum += embedding_dense_backward(gradient, indices, rows of sum, padding, false), touching the named rows alone: the
/// others would get +0, which changes no sum that began with +0. Requires: float32, dense; indices int64 or int32.
class RowSum {
 public:
  void add(const at::Tensor& sum, const at::Tensor& gradient, const at::Tensor& indices, int64_t padding, bool first);

 private:
  std::vector<std::pair<int64_t, int64_t>> order_;  // (row, position in the gradient), ascending
  std::vector<int64_t> begins_;                     // of the rows in it
};

}  // namespace abele::runtime

// Gradients added up by what makes them, with the bits of eager's two steps: make the gradient, add it to the sum.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace abele::runtime {

/// sum += left.mm(right). Where a trial gives the same bits, one product adds to the sum: a product over short rows is
/// complete before it meets the sum, one over long rows is made in parts, and the library decides what is long.
/// reorders: always one product, without a trial. After n of them over rows of k each element of the sum is then within
/// (n * k + n) * u * sum |left| |right| of the real one, u being half the distance from 1 to the next number.
class ProductSum {
 public:
  explicit ProductSum(bool reorders) : reorders_(reorders) {}
  /// first: the sum starts with this product. The operands of all calls are alike, and so is the number of threads.
  void add(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right, bool first);

 private:
  bool reorders_;
  std::optional<bool> in_one_;  // what the trial said
};

/// Does one product that adds to the sum give the bits of a product and an add? Tried with random numbers on operands
/// of these sizes, strides, alignment and types, with this thread's number of threads; kept for the process.
bool addsInOneProduct(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right);

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

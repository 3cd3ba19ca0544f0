// Sums that take one gradient of each micro-batch side by side, in their order, in one pass over the sum.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace abele::runtime {

/// sum = sum + terms[0] + terms[1] + ..., from left to right; first: the sum starts with terms[0]. float32 on the CPU,
/// as many elements each as the sum has, one behind the other.
void addLanes(const at::Tensor& sum, const std::vector<const float*>& terms, bool first);

/// Of several products, those of the first lane; all have their sizes and strides.
struct LaneFactors {
  const at::Tensor& left;
  const at::Tensor& right;
  std::vector<const float*> lefts, rights;  // by lane
};
/// Are the products small, and does a kernel of ours give the bits of a product and an add for each lane? Tried with
/// random numbers and with zeros of both signs on operands of these sizes, strides and alignment, with this thread's
/// number of threads; kept for the process.
bool multipliesLanes(const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right, int64_t lanes);
/// sum = sum + left[0].mm(right[0]) + ..., from left to right; first: the sum starts with the first product.
/// Requires: multipliesLanes.
void addLaneProducts(const at::Tensor& sum, const LaneFactors& factors, bool first);

}  // namespace abele::runtime

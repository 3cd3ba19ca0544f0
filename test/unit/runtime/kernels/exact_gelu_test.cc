#include "runtime/kernels/exact_gelu.h"

#include <bit>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

namespace abele::runtime {
namespace {

constexpr int64_t kBlock = 1 << 20;

bool hasSameBits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

void requireBitsOfAten(const at::Tensor& x, const at::Tensor& grad) {
  at::Tensor found = at::empty(x.sizes(), at::kFloat);
  exactGeluInto(found, x);
  ASSERT_TRUE(hasSameBits(found, at::gelu(x))) << x.sizes();
  exactGeluBackwardInto(found, grad, x);
  ASSERT_TRUE(hasSameBits(found, at::gelu_backward(grad, x))) << x.sizes();
}

// Every 61st float32, or each of them.
TEST(ExactGelu, GivesTheBitsOfAtenForEveryNumber) {
  const int64_t stride = std::getenv("ABELE_ALL_FLOATS") ? 1 : 61;
  at::Tensor x = at::empty({kBlock}, at::kFloat);
  for (int64_t begin = 0; begin < int64_t{1} << 32; begin += kBlock * stride) {
    for (int64_t i = 0; i < kBlock; ++i)
      x.mutable_data_ptr<float>()[i] = std::bit_cast<float>(static_cast<uint32_t>(begin + i * stride));
    ASSERT_NO_FATAL_FAILURE(requireBitsOfAten(x, at::randn({kBlock}, at::kFloat))) << "from " << begin;
  }
}

TEST(ExactGelu, GivesTheBitsOfAtenForEveryShape) {
  std::vector<std::vector<int64_t>> shapes = {{},           {1, 1},       {16, 1},    {1, 1, 1, 16},
                                              {3, 1, 1, 7}, {2, 3, 4, 5}, {0, 4},     {2, 3, 4, 5, 6},
                                              {7, 33, 129}, {33000},      {257, 257}, {2, 1, 2, 3, 2, 2}};
  for (int64_t n = 1; n < 70; ++n) shapes.push_back({n});
  for (const std::vector<int64_t>& shape : shapes)
    requireBitsOfAten(at::randn(shape, at::kFloat), at::randn(shape, at::kFloat));
}

// oneDNN computes what is not dense in another way.
TEST(ExactGelu, LeavesOtherLayoutsToAten) {
  const at::Tensor x = at::randn({48, 32}, at::kFloat), grad = at::randn({32, 48}, at::kFloat);
  at::Tensor found = at::empty({32, 48}, at::kFloat), expected = at::empty({32, 48}, at::kFloat);
  exactGeluInto(found, x.t());
  EXPECT_TRUE(hasSameBits(found, at::gelu_out(expected, x.t())));
  exactGeluBackwardInto(found, grad, x.t());
  EXPECT_TRUE(hasSameBits(found, at::gelu_backward_out(expected, grad, x.t())));
}

}  // namespace
}  // namespace abele::runtime

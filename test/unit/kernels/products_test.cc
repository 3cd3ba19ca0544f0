#include "kernels/products.h"

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace abele::kernels {
namespace {

struct Products : ::testing::TestWithParam<int> {
  void SetUp() override {
    before = at::get_num_threads();
    at::set_num_threads(GetParam());
    at::manual_seed(3);
    const at::Tensor one = at::ones({1, 1});
    if (!blisProduct(at::empty({1, 1}), one, one, /*adds=*/false, BlisWay::kPacked))
      GTEST_SKIP() << "built without BLIS";
  }
  void TearDown() override { at::set_num_threads(before); }
  int before = 1;
};

enum class Layout { kRows, kColumns, kPartOfRows };

at::Tensor matrix(int64_t rows, int64_t columns, Layout layout) {
  if (layout == Layout::kRows) return at::randn({rows, columns});
  if (layout == Layout::kColumns) return at::randn({columns, rows}).t();
  return at::randn({rows, columns + 3}).narrow(1, 2, columns);
}

// The bound of products.h, and one rounding for the element that the product is added to.
void expectWithinBound(const at::Tensor& out, const at::Tensor& before, const at::Tensor& left,
                       const at::Tensor& right) {
  const at::Tensor a = left.to(at::kDouble), b = right.to(at::kDouble), sum = before.to(at::kDouble);
  const at::Tensor size = sum.abs() + a.abs().mm(b.abs());
  const at::Tensor error = (out.to(at::kDouble) - sum - a.mm(b)).abs();
  EXPECT_TRUE((error <= static_cast<double>(left.size(1) + 1) * 0x1p-24 * size).all().item<bool>());
}

TEST_P(Products, EveryWayIsWithinTheBoundInEveryLayout) {
  const std::vector<std::vector<int64_t>> sizes = {{1, 1, 1},     {1, 7, 33},     {5, 300, 1},    {4, 768, 70},
                                                   {130, 17, 64}, {67, 700, 259}, {300, 129, 12}, {1, 1, 90}};
  const auto layouts = {Layout::kRows, Layout::kColumns, Layout::kPartOfRows};
  for (const std::vector<int64_t>& size : sizes)
    for (const Layout left_layout : layouts)
      for (const Layout right_layout : layouts)
        for (const bool adds : {false, true})
          for (const std::optional<BlisWay> way :
               {std::optional<BlisWay>(), std::optional(BlisWay::kInPlace), std::optional(BlisWay::kPacked)}) {
            const at::Tensor left = matrix(size[0], size[1], left_layout),
                             right = matrix(size[1], size[2], right_layout);
            const at::Tensor out = at::randn({size[0], size[2]}), before = out.clone();
            if (!adds) out.fill_(std::numeric_limits<float>::quiet_NaN());  // it must not be read
            if (way)
              ASSERT_TRUE(blisProduct(out, left, right, adds, *way));
            else
              fastProduct(out, left, right, adds);
            SCOPED_TRACE(::testing::Message()
                         << size << " " << left.strides() << " " << right.strides() << " " << adds);
            expectWithinBound(out, adds ? before : at::zeros_like(out), left, right);
          }
}

TEST_P(Products, WhatBlisCannotComputeIsLeftToATen) {
  const at::Tensor left = at::randn({6, 5}), right = at::randn({5, 4}), apart = at::randn({6, 10}).slice(1, 0, 10, 2);
  const at::Tensor repeated = at::randn({1, 5}).expand({6, 5}), wide = left.to(at::kDouble);
  const at::Tensor out = at::full({6, 4}, 2.0);
  EXPECT_FALSE(blisProduct(out, apart, right, false, BlisWay::kPacked));
  EXPECT_FALSE(blisProduct(out, repeated, right, false, BlisWay::kPacked));
  EXPECT_FALSE(blisProduct(out, at::empty({6, 0}), at::empty({0, 4}), false, BlisWay::kPacked));
  EXPECT_FALSE(blisProduct(out.to(at::kDouble), wide, right.to(at::kDouble), false, BlisWay::kPacked));
  EXPECT_TRUE((out == 2.0).all().item<bool>());

  fastProduct(out, repeated, right, /*adds=*/false);
  EXPECT_TRUE(at::equal(out, repeated.mm(right)));
  fastProduct(out, at::empty({6, 0}), at::empty({0, 4}), /*adds=*/false);
  EXPECT_TRUE((out == 0.0).all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Threads, Products, ::testing::Values(1, 2),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace abele::kernels

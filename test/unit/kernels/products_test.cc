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

// The same numbers in both, with the sign of zero; every NaN is the same.
void expectSameBits(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor is_nan = expected.isnan();
  EXPECT_TRUE(at::equal(found.isnan(), is_nan));
  EXPECT_TRUE(at::equal(found.masked_fill(is_nan, 0).view(at::kInt), expected.masked_fill(is_nan, 0).view(at::kInt)));
}

// Rows of zeros of both signs, of denormal numbers, of large numbers; an infinite number, and NaN.
at::Tensor unusual(const at::Tensor& matrix) {
  const at::Tensor m = matrix.clone(at::MemoryFormat::Preserve);
  m.narrow(0, 0, 2).zero_();
  m.narrow(0, 2, 2).fill_(-0.0);
  m.narrow(0, 4, 2).mul_(1e-40);
  m.narrow(0, 6, 2).mul_(1e25);
  m[8][3] = std::numeric_limits<float>::infinity();
  m[9][5] = std::numeric_limits<float>::quiet_NaN();
  return m;
}

TEST_P(Products, ExactOnesHaveTheBitsOfATen) {
  // Sums of one part, of two halves that are even or not, and of several parts; products that are too small for a
  // trial; results that a trial compares in parts of rows, or of columns.
  const std::vector<std::vector<int64_t>> sizes = {{20, 30, 40},    {130, 64, 140},  {96, 193, 80},   {200, 256, 70},
                                                   {64, 384, 64},   {100, 400, 129}, {256, 512, 192}, {12, 768, 300},
                                                   {300, 1030, 20}, {40, 3072, 33},  {65, 577, 260},  {3000, 70, 130},
                                                   {96, 200, 4096}};
  for (const std::vector<int64_t>& size : sizes)
    for (const Layout left_layout : {Layout::kRows, Layout::kColumns, Layout::kPartOfRows})
      for (const Layout right_layout : {Layout::kRows, Layout::kColumns})
        for (const bool adds : {false, true})
          for (const bool is_unusual : {false, true}) {
            at::Tensor left = matrix(size[0], size[1], left_layout), right = matrix(size[1], size[2], right_layout);
            if (is_unusual) left = unusual(left), right = unusual(right.t()).t();
            const at::Tensor term = at::randn({size[0], size[2]});
            at::Tensor out = term.clone();
            SCOPED_TRACE(::testing::Message()
                         << size << " " << left.strides() << " " << right.strides() << " " << adds);
            if (adds)
              at::addmm_out(out, out, left, right);
            else
              at::mm_out(out, left, right);
            const at::Tensor expected = out.clone();
            exactProduct(out, left, right, adds ? &term : nullptr);
            expectSameBits(out, expected);
          }
}

TEST_P(Products, SumsOfExactOnesHaveTheBitsOfATen) {
  const at::Tensor left = at::randn({130, 128}), right = at::randn({128, 140}), term = at::randn({130, 140});
  at::Tensor sum = at::empty({130, 140});
  exactProduct(sum, left, right, nullptr);  // chooses
  sum.copy_(term);
  at::addmm_out(sum, sum, left, right);
  const at::Tensor expected = sum.clone();
  sum.copy_(term);
  addExactProduct(sum, left, right);
  EXPECT_TRUE(at::equal(sum, expected));
}

TEST(TermsOfPart, AreAllHalfOrTheMost) {
  EXPECT_EQ(termsOfPart(192, 192), 192);
  EXPECT_EQ(termsOfPart(193, 192), 96);
  EXPECT_EQ(termsOfPart(384, 192), 192);
  EXPECT_EQ(termsOfPart(385, 192), 192);
  EXPECT_EQ(termsOfPart(385, 384), 192);
  EXPECT_EQ(termsOfPart(3072, 384), 384);
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

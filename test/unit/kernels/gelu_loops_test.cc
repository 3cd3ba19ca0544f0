// GELU's loops for every kind of processor that this one is: within the bounds that gelu_loops.h states.
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>

#include "kernels/gelu_loops.h"

namespace abele::kernels::loops {
namespace {

constexpr double kUnit = 0x1p-24;  // of float32

double below(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double geluOf(double x) { return x * below(x); }
double factorOf(double x) { return below(x) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * std::acos(-1.0)); }

// Densely where the function bends, and beyond.
std::vector<float> numbers() {
  std::vector<float> all;
  for (int i = -70000; i <= 70000; ++i) all.push_back(static_cast<float>(i) * 2e-4F);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 30001; ++i) all.push_back(normal(random) * std::exp(normal(random) * 3));
  for (const float odd : {0.0F, -0.0F, 1e-40F, -1e-40F, 1e30F, -1e30F, 3e38F}) all.push_back(odd);
  return all;
}

struct Gelu : ::testing::TestWithParam<std::string> {
  void SetUp() override {
    if (!geluLoops()) GTEST_SKIP() << "no loops for this processor";
    if (GetParam() == "avx512" && geluLoops() != &kernels::loops::avx512::kGelu)
      GTEST_SKIP() << "the processor has none";
    loops = GetParam() == "avx512" ? &kernels::loops::avx512::kGelu : &kernels::loops::avx2::kGelu;
  }
  const GeluLoops* loops = nullptr;
};

TEST_P(Gelu, IsWithinItsBound) {
  const std::vector<float> x = numbers();
  std::vector<float> y(x.size());
  loops->forward(static_cast<int64_t>(x.size()), y.data(), x.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = geluOf(x[i]);
    ASSERT_LE(std::abs(y[i] - expected), kUnit * (6 * std::abs(x[i]) + std::abs(expected)) + 1e-44) << "at " << x[i];
  }
}

TEST_P(Gelu, ItsGradientIsWithinItsBound) {
  const std::vector<float> x = numbers();
  std::vector<float> grad(x.size()), out(x.size());
  for (size_t i = 0; i < x.size(); ++i) grad[i] = i % 2 == 0 ? 1.0F : -0.75F;
  loops->backward(static_cast<int64_t>(x.size()), out.data(), grad.data(), x.data());
  for (size_t i = 0; i < x.size(); ++i) {
    // Where the density is no number of float32 any more it is 0, and so is x times it.
    const double bound = kUnit * 6 * (1 + std::min(std::abs(static_cast<double>(x[i])), 14.0));
    ASSERT_LE(std::abs(out[i] - grad[i] * factorOf(x[i])), bound) << "at " << x[i];
  }
}

TEST_P(Gelu, WhatIsNotFiniteIsAsAtensKernelsGiveIt) {
  const float infinite = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {infinite, -infinite, std::nanf("")}, grad = {1, 1, 1};
  std::vector<float> y(3), out(3);
  loops->forward(3, y.data(), x.data());
  loops->backward(3, out.data(), grad.data(), x.data());
  EXPECT_EQ(y[0], infinite);
  EXPECT_TRUE(std::isnan(y[1]) && std::isnan(y[2]));
  EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]) && std::isnan(out[2]));
}

TEST_P(Gelu, Bfloat16IsTheFloatRoundedOnce) {
  std::vector<uint16_t> x, grad;
  for (uint32_t bits = 0; bits < 0x10000; bits += 3) {
    x.push_back(static_cast<uint16_t>(bits));
    grad.push_back(c10::BFloat16(1.5F).x);
  }
  const auto count = static_cast<int64_t>(x.size());
  std::vector<uint16_t> y(x.size()), out(x.size());
  std::vector<float> wide(x.size()), wide_grad(x.size(), 1.5F), wide_y(x.size()), wide_out(x.size());
  for (size_t i = 0; i < x.size(); ++i) wide[i] = static_cast<float>(c10::BFloat16(x[i], c10::BFloat16::from_bits()));
  loops->forward_bf16(count, y.data(), x.data());
  loops->forward(count, wide_y.data(), wide.data());
  loops->backward_bf16(count, out.data(), grad.data(), x.data());
  loops->backward(count, wide_out.data(), wide_grad.data(), wide.data());
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(y[i], c10::BFloat16(wide_y[i]).x) << "at " << wide[i];
    ASSERT_EQ(out[i], c10::BFloat16(wide_out[i]).x) << "at " << wide[i];
  }
}

// Any number of elements, the last ones too, and none beyond.
TEST_P(Gelu, EveryElementHasTheSameBitsWhereverItStands) {
  const std::vector<float> x = numbers();
  std::vector<float> whole(x.size());
  loops->forward(static_cast<int64_t>(x.size()), whole.data(), x.data());
  for (int64_t count = 0; count < 70; ++count) {
    std::vector<float> part(72, 7.0F);
    loops->forward(count, part.data() + 1, x.data() + 60001);
    for (int64_t i = 0; i < count; ++i)
      ASSERT_EQ(part[static_cast<size_t>(i + 1)], whole[static_cast<size_t>(60001 + i)]);
    EXPECT_EQ(part[static_cast<size_t>(count + 1)], 7.0F);
    EXPECT_EQ(part[0], 7.0F);
  }
}

INSTANTIATE_TEST_SUITE_P(Processors, Gelu, ::testing::Values("avx2", "avx512"),
                         [](const auto& row) { return row.param; });

}  // namespace
}  // namespace abele::kernels::loops

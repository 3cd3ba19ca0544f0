// The loops of layer normalisation for every kind of processor that this one is: within the bounds that norm_loops.h
// states, and gradients within those below.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/norm_loops.h"

namespace abele::kernels::loops {
namespace {

constexpr double kRoundoff = 0x1p-24;  // float32
constexpr float kEps = 1e-5F;

struct Data {
  int64_t num_rows, width;
  std::vector<float> x, weight, bias, grad;
  NormRows rows() const { return {.width = width, .x = x.data(), .weight = weight.data()}; }
};

// Rows whose mean is far from zero, and of several sizes.
Data dataOf(int64_t num_rows, int64_t width) {
  std::mt19937 random(static_cast<uint32_t>(num_rows * 1000 + width));
  std::normal_distribution<float> normal;
  Data data{.num_rows = num_rows, .width = width};
  for (int64_t row = 0; row < num_rows; ++row) {
    const float offset = static_cast<float>(row % 4) * 5.0F, size = std::exp(static_cast<float>(row % 7) - 3);
    for (int64_t i = 0; i < width; ++i) {
      data.x.push_back((normal(random) + offset) * size);
      data.grad.push_back(normal(random));
    }
  }
  for (int64_t i = 0; i < width; ++i) {
    data.weight.push_back(normal(random));
    data.bias.push_back(normal(random));
  }
  return data;
}

struct Results {
  std::vector<float> y, mean, scale, grad_x, grad_weight, grad_bias;
};

struct Norm : ::testing::TestWithParam<std::string> {
  void SetUp() override {
    if (!normLoops()) GTEST_SKIP() << "no loops for this processor";
    if (GetParam() == "avx512" && normLoops() != &kernels::loops::avx512::kNorm)
      GTEST_SKIP() << "the processor has none";
    loops = GetParam() == "avx512" ? &kernels::loops::avx512::kNorm : &kernels::loops::avx2::kNorm;
  }

  Results of(const Data& data) const {
    const auto count = data.x.size(), rows = static_cast<size_t>(data.num_rows), width = data.weight.size();
    Results out{.y = std::vector<float>(count, 7.0F),
                .mean = std::vector<float>(rows, 7.0F),
                .scale = std::vector<float>(rows, 7.0F),
                .grad_x = std::vector<float>(count, 7.0F),
                .grad_weight = std::vector<float>(width),
                .grad_bias = std::vector<float>(width)};
    loops->forward(0, data.num_rows, data.rows(), data.bias.data(), kEps, out.y.data(), out.mean.data(),
                   out.scale.data());
    loops->input_gradient(0, data.num_rows, data.rows(), data.grad.data(), out.mean.data(), out.scale.data(),
                          out.grad_x.data());
    loops->parameter_gradients(0, data.num_rows, 0, data.width, data.rows(), data.grad.data(), out.mean.data(),
                               out.scale.data(), out.grad_weight.data(), out.grad_bias.data());
    return out;
  }

  const NormLoops* loops = nullptr;
};

TEST_P(Norm, IsWithinItsBound) {
  for (const int64_t width : {1, 2, 15, 16, 17, 31, 33, 48, 128, 200, 1000, 4096}) {
    const Data data = dataOf(9, width);
    const Results out = of(data);
    const double k = static_cast<double>(width) / 32 + 10;
    for (int64_t row = 0; row < data.num_rows; ++row) {
      const float* x = data.x.data() + row * width;
      double mean = 0, squares = 0, largest = 0;
      for (int64_t i = 0; i < width; ++i) mean += x[i], largest = std::max<double>(largest, std::abs(x[i]));
      mean /= static_cast<double>(width);
      for (int64_t i = 0; i < width; ++i) squares += (x[i] - mean) * (x[i] - mean);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + kEps);
      const auto r = static_cast<size_t>(row);
      ASSERT_LE(std::abs(out.mean[r] - mean), k * kRoundoff * largest) << width;
      ASSERT_LE(std::abs(out.scale[r] - scale), (k + 4) * kRoundoff * scale) << width;
      for (int64_t i = 0; i < width; ++i) {
        const double h = (x[i] - mean) * scale;
        const auto c = static_cast<size_t>(i);
        const double expected = h * data.weight[c] + data.bias[c];
        const double bound = kRoundoff * (std::abs(data.weight[c]) * (2 * k + 8) * (largest * scale + std::abs(h)) +
                                          2 * std::abs(data.bias[c]));
        ASSERT_LE(std::abs(out.y[static_cast<size_t>(row * width + i)] - expected), bound) << width << " at " << i;
      }
    }
  }
}

// Of the mean and the scale that the loops are given. e bounds what (x - m) s is off by.
TEST_P(Norm, ItsGradientsAreWithinTheirBounds) {
  for (const int64_t width : {1, 16, 17, 33, 128, 1000}) {
    const Data data = dataOf(37, width);
    const Results out = of(data);
    const auto count = static_cast<double>(width);
    const double k = count / 32 + 10;
    std::vector<double> grad_weight(data.weight.size()), grad_bias(data.weight.size()), sizes(data.weight.size()),
        bias_sizes(data.weight.size());
    for (int64_t row = 0; row < data.num_rows; ++row) {
      const double m = out.mean[static_cast<size_t>(row)], s = out.scale[static_cast<size_t>(row)];
      const auto at = [&](const std::vector<float>& all, int64_t i) -> double {
        return all[static_cast<size_t>(row * width + i)];
      };
      const auto h = [&](int64_t i) { return (at(data.x, i) - m) * s; };
      const auto g = [&](int64_t i) { return at(data.grad, i) * data.weight[static_cast<size_t>(i)]; };
      double e = 0, plain = 0, along = 0, plain_size = 0, along_size = 0;
      for (int64_t i = 0; i < width; ++i) {
        e = std::max(e, 3 * kRoundoff * (std::abs(at(data.x, i)) + std::abs(m)) * s);
        plain += g(i) / count, plain_size += std::abs(g(i)) / count;
        along += g(i) * h(i) / count, along_size += std::abs(g(i) * h(i)) / count;
      }
      const double plain_off = k * kRoundoff * plain_size, along_off = k * kRoundoff * along_size + e * plain_size;
      for (int64_t i = 0; i < width; ++i) {
        const double expected = s * (g(i) - plain - h(i) * along);
        const double size = std::abs(g(i)) + std::abs(plain) + std::abs(h(i) * along);
        const double bound = s * (8 * kRoundoff * size + plain_off + std::abs(h(i)) * along_off + e * std::abs(along));
        ASSERT_LE(std::abs(at(out.grad_x, i) - expected), bound * 1.01) << width << " at " << row << ", " << i;
        const auto c = static_cast<size_t>(i);
        grad_weight[c] += at(data.grad, i) * h(i);
        sizes[c] +=
            std::abs(at(data.grad, i)) * (std::abs(h(i)) * kRoundoff * (static_cast<double>(data.num_rows) + 2) + e);
        grad_bias[c] += at(data.grad, i);
        bias_sizes[c] += std::abs(at(data.grad, i)) * kRoundoff * static_cast<double>(data.num_rows);
      }
    }
    for (size_t c = 0; c < grad_weight.size(); ++c) {
      ASSERT_LE(std::abs(out.grad_weight[c] - grad_weight[c]), sizes[c] * 1.01) << width << " at " << c;
      ASSERT_LE(std::abs(out.grad_bias[c] - grad_bias[c]), bias_sizes[c] * 1.01) << width << " at " << c;
    }
  }
}

// Rows and columns that are shared out give the bits of all at once, and nothing beyond them is touched.
TEST_P(Norm, PartsAreTheWhole) {
  const Data data = dataOf(11, 70);
  const Results whole = of(data);
  Results parts = whole;
  std::fill(parts.y.begin(), parts.y.end(), 7.0F);
  std::fill(parts.grad_x.begin(), parts.grad_x.end(), 7.0F);
  std::fill(parts.grad_weight.begin(), parts.grad_weight.end(), 0.0F);
  std::fill(parts.grad_bias.begin(), parts.grad_bias.end(), 0.0F);
  const auto run = [&](int64_t begin, int64_t end) {
    loops->forward(begin, end, data.rows(), data.bias.data(), kEps, parts.y.data(), parts.mean.data(),
                   parts.scale.data());
    loops->input_gradient(begin, end, data.rows(), data.grad.data(), parts.mean.data(), parts.scale.data(),
                          parts.grad_x.data());
  };
  run(4, 11);
  EXPECT_EQ(parts.y[4 * 70 - 1], 7.0F);
  EXPECT_EQ(parts.grad_x[4 * 70 - 1], 7.0F);
  run(0, 4);
  for (const auto& [first, last] : {std::pair{0, 5}, {5, 37}, {37, 70}})
    for (const auto& [begin, end] : {std::pair{0, 3}, {3, 11}})
      loops->parameter_gradients(begin, end, first, last, data.rows(), data.grad.data(), parts.mean.data(),
                                 parts.scale.data(), parts.grad_weight.data(), parts.grad_bias.data());
  EXPECT_EQ(parts.y, whole.y);
  EXPECT_EQ(parts.grad_x, whole.grad_x);
  EXPECT_EQ(parts.grad_weight, whole.grad_weight);
  EXPECT_EQ(parts.grad_bias, whole.grad_bias);
}

TEST_P(Norm, WhatIsNotFiniteStaysInItsRow) {
  Data data = dataOf(3, 40);
  const Results before = of(data);
  data.x[40 + 5] = std::nanf("");
  const Results after = of(data);
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(after.y[i], before.y[i]);
    EXPECT_TRUE(std::isnan(after.y[40 + i]) && std::isnan(after.grad_x[40 + i]));
    EXPECT_EQ(after.y[80 + i], before.y[80 + i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Processors, Norm, ::testing::Values("avx2", "avx512"),
                         [](const auto& row) { return row.param; });

}  // namespace
}  // namespace abele::kernels::loops

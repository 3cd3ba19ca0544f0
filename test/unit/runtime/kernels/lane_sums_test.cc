#include "runtime/kernels/lane_sums.h"

#include <cmath>
#include <cstring>
#include <tuple>

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "base/processor_loops.h"
#include "runtime/kernels/intra_op_threads.h"

namespace abele::runtime {
namespace {

bool hasSameBits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

std::vector<const float*> pointersTo(const std::vector<at::Tensor>& tensors) {
  std::vector<const float*> all;
  for (const at::Tensor& tensor : tensors) all.push_back(tensor.const_data_ptr<float>());
  return all;
}

// Does ATen add up the terms of an element from left to right? On some processors it cuts long sums into parts.
bool isChainInAten(const at::Tensor& left, const at::Tensor& right) {
  const at::Tensor rows = left.contiguous(), columns = right.t().contiguous();
  at::Tensor chained = at::empty({left.size(0), right.size(1)});
  float* sum = chained.mutable_data_ptr<float>();
  for (int64_t r = 0; r < left.size(0); ++r)
    for (int64_t c = 0; c < right.size(1); ++c, ++sum) {
      *sum = 0;
      for (int64_t k = 0; k < left.size(1); ++k)
        *sum = std::fma(rows.const_data_ptr<float>()[r * left.size(1) + k],
                        columns.const_data_ptr<float>()[c * left.size(1) + k], *sum);
    }
  return hasSameBits(chained, at::mm(left, right));
}

TEST(LaneSums, TermsAreAddedFromLeftToRight) {
  for (const int64_t size : {1, 31, 32, 100, 70'001}) {
    at::Tensor found = at::randn({size}), expected = found.clone();
    for (const bool first : {true, false}) {
      std::vector<at::Tensor> terms;
      for (int lane = 0; lane < 5; ++lane) terms.push_back(at::randn({size}));
      addLanes(found, pointersTo(terms), first);
      for (std::size_t lane = 0; lane < terms.size(); ++lane)
        first&& lane == 0 ? expected.copy_(terms[lane]) : expected.add_(terms[lane]);
      ASSERT_TRUE(hasSameBits(found, expected)) << size << (first ? " first" : "");
    }
  }
}

// Sizes that fill tiles, and others; operands as autograd makes them, and untransposed ones.
class LaneProducts : public testing::TestWithParam<std::tuple<int64_t, int64_t, int64_t, int64_t, bool, int>> {
 public:
  ~LaneProducts() override { setIntraOpThreads(1); }
};

TEST_P(LaneProducts, AreThoseOfAten) {
  const auto [rows, columns, depth, lanes, is_transposed, threads] = GetParam();
  setIntraOpThreads(threads);
  const auto leftOf = [&, rows = rows, depth = depth, is_transposed = is_transposed] {
    return is_transposed ? at::randn({depth, rows}).t() : at::randn({rows, depth});
  };
  at::Tensor found = at::randn({rows, columns}), expected = found.clone();
  for (const bool first : {true, false}) {
    std::vector<at::Tensor> lefts, rights;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      lefts.push_back(leftOf());
      rights.push_back(at::randn({depth, columns}));
      lefts.back().masked_fill_(lefts.back() < -1, -0.0);  // a ReLU's
      rights.back().select(1, 0).abs_();
    }
    if (!multipliesLanes(found, lefts[0], rights[0], lanes)) {
      // The trial has to find what it exists for. Products of vectors go other ways, and a chain of one is no chain.
      const bool is_product = rows > 1 && columns > 1 && depth > 1 && depth <= 384 && rows * columns * depth <= 1 << 18;
      ASSERT_TRUE(processor() != Processor::kAvx512 || !is_product || !isChainInAten(lefts[0], rights[0]))
          << "no product of ours has ATen's bits";
      GTEST_SKIP() << "ATen's products stay";
    }
    addLaneProducts(found, {lefts[0], rights[0], pointersTo(lefts), pointersTo(rights)}, first);
    for (std::size_t lane = 0; lane < lefts.size(); ++lane) {
      const at::Tensor product = at::mm(lefts[lane], rights[lane]);
      first&& lane == 0 ? expected.copy_(product) : expected.add_(product);
    }
    ASSERT_TRUE(hasSameBits(found, expected)) << (first ? "first" : "");
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, LaneProducts,
                         testing::Combine(testing::Values(1, 8, 13, 128), testing::Values(1, 16, 33, 128),
                                          testing::Values(1, 7, 16, 384, 385), testing::Values(2, 8), testing::Bool(),
                                          testing::Values(1, 2)));

TEST(LaneProducts, OtherElementsAndLayoutsAreLeftToAten) {
  const at::Tensor sum = at::randn({8, 8}), left = at::randn({8, 4}), right = at::randn({4, 8});
  EXPECT_FALSE(multipliesLanes(sum.to(at::kDouble), left.to(at::kDouble), right.to(at::kDouble), 2));
  EXPECT_FALSE(multipliesLanes(sum.t().contiguous().t(), left, right, 2));
  EXPECT_FALSE(multipliesLanes(sum, left, at::randn({8, 4}).t(), 2));
}

}  // namespace
}  // namespace abele::runtime

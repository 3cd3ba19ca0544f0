#include "kernels/parallel.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace abele::kernels {
namespace {

struct ShareOut : ::testing::Test {
  void SetUp() override {
    before = at::get_num_threads();
    at::set_num_threads(2);
  }
  void TearDown() override { at::set_num_threads(before); }
  int before = 1;
};

struct Shares {
  std::vector<std::pair<int64_t, int64_t>> ranges;  // ascending
  std::set<int> threads;
};

Shares sharesOf(int64_t count, int64_t grain) {
  Shares shares;
  std::mutex mutex;
  shareOut(count, grain, [&](int64_t begin, int64_t end) {
    const std::lock_guard<std::mutex> lock(mutex);
    shares.ranges.emplace_back(begin, end);
    shares.threads.insert(at::get_thread_num());
  });
  std::sort(shares.ranges.begin(), shares.ranges.end());
  return shares;
}

TEST_F(ShareOut, CoversEverythingOnceOnTheIntraOpThreads) {
  for (const int64_t count : {2, 3, 7, 100, 65537}) {
    const Shares shares = sharesOf(count, 1);
    int64_t next = 0;
    for (const auto& [begin, end] : shares.ranges) {
      EXPECT_EQ(begin, next);
      next = end;
    }
    EXPECT_EQ(next, count);
    EXPECT_EQ(shares.threads, (std::set<int>{0, 1})) << count;
  }
}

TEST_F(ShareOut, SmallWorkStaysWithTheCaller) {
  EXPECT_EQ(sharesOf(0, 1).ranges.size(), 0U);
  EXPECT_EQ(sharesOf(100, 100).ranges, (std::vector<std::pair<int64_t, int64_t>>{{0, 100}}));
  at::set_num_threads(1);
  EXPECT_EQ(sharesOf(100, 1).ranges, (std::vector<std::pair<int64_t, int64_t>>{{0, 100}}));
}

TEST_F(ShareOut, InsideOfARangeEverythingIsOneRange) {
  shareOut(2, 1, [&](int64_t, int64_t) {
    EXPECT_TRUE(at::in_parallel_region());
    EXPECT_EQ(sharesOf(100, 1).ranges.size(), 1U);
  });
}

TEST_F(ShareOut, ErrorsReachTheCaller) {
  EXPECT_THROW(shareOut(2, 1,
                        [](int64_t begin, int64_t) {
                          if (begin == 1) throw std::runtime_error("the second range");
                        }),
               std::runtime_error);
}

}  // namespace
}  // namespace abele::kernels

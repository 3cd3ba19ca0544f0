#include "kernels/known_trials.h"

#include <optional>

#include <gtest/gtest.h>

namespace abele::kernels {
namespace {

TEST(KnownTrials, RunATrialOnceAlsoIfItsAnswerIsNothing) {
  KnownTrials<int, std::optional<int>> known;
  int trials = 0;
  const auto attempt = [&](std::optional<int> answer) { return ++trials, answer; };
  EXPECT_FALSE(known.find(1).has_value());
  EXPECT_EQ(known.of(1, [&] { return attempt(7); }), std::optional(7));
  EXPECT_EQ(known.of(2, [&] { return attempt(std::nullopt); }), std::nullopt);
  EXPECT_EQ(known.of(1, [&] { return attempt(8); }), std::optional(7));
  EXPECT_EQ(known.of(2, [&] { return attempt(8); }), std::nullopt);
  EXPECT_EQ(trials, 2);
  ASSERT_TRUE(known.find(2).has_value());
  EXPECT_EQ(*known.find(2), std::nullopt);
}

}  // namespace
}  // namespace abele::kernels

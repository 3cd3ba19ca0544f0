#include "base/link_time.h"

#include <gtest/gtest.h>

namespace abele {
namespace {

TEST(LinkTime, ComesOfAShortAndALongMessage) {
  EXPECT_EQ(linkTimeOf(1'000, 3'000, 4'000), (LinkTime{1'000, 2'000'000'000}));
  // The clock does not move, so the time cannot be smaller than its resolution.
  EXPECT_EQ(linkTimeOf(0, 0, 8), (LinkTime{0, 8'000'000'000}));
  EXPECT_TRUE(linkTimeOf(5, 3, 1).isKnown());
}

TEST(LinkTime, TheWorseFiguresOfTwo) {
  const LinkTime none, late{9, 100}, slow{5, 10};
  EXPECT_EQ(slowerOf(late, slow), (LinkTime{9, 10}));
  EXPECT_EQ(slowerOf(none, slow), slow);
  EXPECT_EQ(slowerOf(slow, none), slow);
  EXPECT_FALSE(slowerOf(none, none).isKnown());
}

TEST(LinkTime, OneAfterTheOtherAddsUp) {
  const LinkTime none, a{5, 1'000}, b{7, 1'000};
  EXPECT_EQ(oneAfterTheOther(a, b), (LinkTime{12, 500}));
  EXPECT_EQ(oneAfterTheOther(none, b), b);
  EXPECT_EQ(oneAfterTheOther(a, none), a);
}

}  // namespace
}  // namespace abele

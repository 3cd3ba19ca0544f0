// StopOnSignal: signals are noted, and afterwards all is as before.
#include "abele/stop.h"

#include <gtest/gtest.h>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace abele::test::stop_test {

TEST(StopOnSignal, NotesAndGivesBack) {
  static int seen = 0;
  std::signal(SIGUSR1, [](int) { ++seen; });
  {
    const StopOnSignal stop({SIGUSR1, SIGTERM});
    EXPECT_FALSE(stop);
    std::raise(SIGUSR1);
    EXPECT_TRUE(stop.requested());
    EXPECT_EQ(stop.signal(), SIGUSR1);
    EXPECT_EQ(seen, 0);
  }
  std::raise(SIGUSR1);
  EXPECT_EQ(seen, 1);
  const StopOnSignal again({SIGUSR1});
  EXPECT_FALSE(again) << "what an earlier one noted is over";
}

TEST(StopOnSignal, TheSecondSignalIsNotHeldBack) {
  const auto ask_twice = [] {
    const StopOnSignal stop;
    std::raise(SIGTERM);
    std::raise(SIGTERM);
  };
  EXPECT_EXIT(ask_twice(), testing::KilledBySignal(SIGTERM), "");
}

TEST(StopOnSignal, WhatCannotBeCaught) {
  EXPECT_EQ(codeOf([] { StopOnSignal({SIGTERM, SIGKILL}); }), "E0708");
  EXPECT_EXIT(std::raise(SIGTERM), testing::KilledBySignal(SIGTERM), "") << "it was given back";
}

}  // namespace abele::test::stop_test

// Callers of several threads get their turns in order; a wait that could never end is an error.
#include "base/turns.h"

#include <gtest/gtest.h>

#include <latch>
#include <thread>
#include <vector>

#include "../../support/child.h"
#include "../../support/code_of.h"
#include "base/error.h"
#include "base/fork.h"

namespace abele {
namespace {

using test::codeOf;
using test::inChild;

void waitUntil(Turns& turns, int64_t waiting) {
  while (turns.numWaiting() != waiting) std::this_thread::yield();
}

TEST(Turns, AreGivenInTheOrderInWhichTheyWereAskedFor) {
  Turns turns;
  std::vector<int> order;
  std::vector<std::jthread> threads;
  {
    const Turns::Turn mine = turns.take("the model");
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&, i] {
        const Turns::Turn turn = turns.take("the model");
        order.push_back(i);
      });
      waitUntil(turns, i + 1);
    }
  }
  threads.clear();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(Turns, RefuseACallerThatHasThem) {
  Turns turns;
  const Turns::Turn mine = turns.take("the model");
  EXPECT_TRUE(turns.isMine());
  EXPECT_EQ(codeOf([&] { (void)turns.take("the model"); }), "E0608");
}

TEST(Turns, RefuseWorkersOfACallerThatHasThem) {
  Turns turns;
  const Turns::Turn mine = turns.take("the model");
  std::string code;
  std::jthread([&, caller = currentCaller()] {
    const WorksFor scope(caller);
    code = codeOf([&] { (void)turns.take("the model"); });
  }).join();
  EXPECT_EQ(code, "E0608");
}

TEST(Turns, RefuseToWaitInACircle) {
  Turns first, second;
  std::latch both(2);
  std::string code;
  std::jthread other([&] {
    const Turns::Turn mine = second.take("the second");
    both.arrive_and_wait();
    const Turns::Turn turn = first.take("the first");
  });
  {
    const Turns::Turn mine = first.take("the first");
    both.arrive_and_wait();
    waitUntil(first, 1);
    code = codeOf([&] { (void)second.take("the second"); });
  }
  other.join();
  EXPECT_EQ(code, "E0608");
}

TEST(Turns, AreNotLostByWhoStopsWaiting) {
  Turns turns;
  std::string code;
  bool came = false;
  {
    const Turns::Turn mine = turns.take("the model");
    std::jthread([&] {
      code = codeOf([&] { (void)turns.take("the model", [] { return true; }); });
      EXPECT_THROW((void)turns.take("the model", []() -> bool { throw std::runtime_error("poll"); }),
                   std::runtime_error);
    }).join();
    EXPECT_EQ(turns.numWaiting(), 0);
  }
  EXPECT_EQ(code, "E0602");
  std::jthread([&] {
    const Turns::Turn turn = turns.take("the model", [] { return false; });
    came = true;
  }).join();
  EXPECT_TRUE(came);
}

TEST(Turns, ExcludeEachOther) {
  Turns turns;
  int64_t sum = 0;  // guarded by turns
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 2000; ++i) {
          const Turns::Turn turn = turns.take("the model");
          ++sum;
        }
      });
  }
  EXPECT_EQ(sum, 8000);
}

// Sanitizers of threads do not follow a process that forks while it has several.
#ifndef __SANITIZE_THREAD__
TEST(Turns, OfOtherThreadsAreFreeInAForkedChild) {
  Turns turns;
  std::latch taken(1), forked(1);
  std::jthread holder([&] {
    const Turns::Turn turn = turns.take("the model");
    taken.count_down();
    forked.wait();
  });
  taken.wait();
  std::jthread waiter([&] { const Turns::Turn turn = turns.take("the model"); });
  waitUntil(turns, 1);
  const int status = inChild([&] {
    const Turns::Turn turn = turns.take("the model");
    return turns.isMine() && turns.numWaiting() == 0 ? 0 : 1;
  });
  forked.count_down();
  EXPECT_EQ(status, 0);
}
#endif

TEST(Turns, OfTheThreadThatForkedAreStillItsOwnInTheChild) {
  Turns turns;
  const Turns::Turn mine = turns.take("the model");
  EXPECT_EQ(inChild([&] { return codeOf([&] { (void)turns.take("the model"); }) == "E0608" ? 0 : 1; }), 0);
}

TEST(Home, IsElsewhereInAForkedChild) {
  const Home home;
  EXPECT_TRUE(home.isHere());
  EXPECT_EQ(inChild([&] { return home.isHere() ? 1 : Home().isHere() ? 0 : 2; }), 0);
  EXPECT_TRUE(home.isHere());
}

}  // namespace
}  // namespace abele

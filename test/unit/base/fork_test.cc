// Locks of the process in children that are forked while other threads hold them.
#include "base/fork.h"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace abele {
namespace {

/// Returns true if a forked child can take both, in either order.
bool areFreeInChild(ProcessMutex& one, ProcessMutex& other) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);
    { const std::scoped_lock lock(one, other); }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0;
}

TEST(ProcessMutex, IsFreeInAChild) {
  static auto &one = *new ProcessMutex, &other = *new ProcessMutex;
  std::atomic<bool> ends = false;
  // Each holds one nearly always, and takes both in an order of its own.
  const auto hold = [&](ProcessMutex& first, ProcessMutex& second) {
    while (!ends) {
      const std::lock_guard lock(first);
      if (second.try_lock()) second.unlock();
    }
  };
  std::jthread forwards([&] { hold(one, other); }), backwards([&] { hold(other, one); });
  int free = 0;
  while (free < 100 && areFreeInChild(one, other)) ++free;
  ends = true;
  EXPECT_EQ(free, 100);
}

}  // namespace
}  // namespace abele

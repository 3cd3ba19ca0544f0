// Work in a process of its own, and processes that are killed at work.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <random>

#include <gtest/gtest.h>

namespace abele::test {

/// Runs fn in a process of its own; its exit status, -1 when a signal ended it.
template <class Fn>
int inChild(const Fn& fn) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(fn());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// Kills processes that call write(0), write(1), ... without end, each at a time of its own once the first call has
/// returned, at most after `spins` looks. After each calls check(i); stops where a test has failed.
/// ABELE_KILLS: how often; `dev test --long` asks for 1,000.
template <class Write, class Check>
void killWriters(uint64_t spins, const Write& write, const Check& check) {
  const char* asked = std::getenv("ABELE_KILLS");
  const int kills = asked ? std::atoi(asked) : 50;
  auto* const written = static_cast<std::atomic<int>*>(
      ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::mt19937 random(3);
  for (int i = 0; i < kills && !testing::Test::HasFatalFailure(); ++i) {
    new (written) std::atomic<int>(0);
    const pid_t child = ::fork();
    if (child == 0)
      for (int k = 0;; ++k) {
        write(k);
        ++*written;
      }
    while (*written < 1) {
    }
    for (uint64_t left = random() % spins; left > 0; --left) (void)written->load();
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    check(i);
  }
  ::munmap(written, sizeof(std::atomic<int>));
}

}  // namespace abele::test

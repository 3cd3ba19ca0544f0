#include "base/fork.h"

#include <pthread.h>

#include <atomic>
#include <vector>

namespace abele {
namespace {

std::atomic<int64_t> generation{0};

struct Mutexes {
  std::mutex adding;
  std::vector<std::mutex*> all;
};
Mutexes& mutexes() {
  static auto* const instance = new Mutexes;
  return *instance;
}

/// Takes all of them. Threads take several of them in orders of their own, so nothing is held while this waits for one.
void lockAll() {
  mutexes().adding.lock();
  const std::vector<std::mutex*>& all = mutexes().all;
  for (size_t waited = 0;;) {
    all[waited]->lock();
    size_t other = 0;
    while (other < all.size() && (other == waited || all[other]->try_lock())) ++other;
    if (other == all.size()) return;
    for (size_t i = 0; i < other; ++i)
      if (i != waited) all[i]->unlock();
    all[waited]->unlock();
    waited = other;
  }
}

void unlockAll() {
  for (std::mutex* mutex : mutexes().all) mutex->unlock();
  mutexes().adding.unlock();
}

}  // namespace

ProcessMutex::ProcessMutex() {
  const std::lock_guard lock(mutexes().adding);
  if (mutexes().all.empty()) ::pthread_atfork(lockAll, unlockAll, unlockAll);
  mutexes().all.push_back(this);
}

int64_t forkGeneration() {
  // forkGeneration() registers the handler, so it runs in every fork after the first number was read.
  [[maybe_unused]] static const int registered = ::pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1); });
  return generation.load(std::memory_order_relaxed);
}

}  // namespace abele

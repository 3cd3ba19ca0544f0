#include "base/fork.h"

#include <pthread.h>

#include <atomic>

namespace abele {
namespace {

std::atomic<int64_t> generation{0};

}  // namespace

int64_t forkGeneration() {
  // Whoever remembers a number asked for it before the fork: by then the handler is there.
  [[maybe_unused]] static const int registered = ::pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1); });
  return generation.load(std::memory_order_relaxed);
}

}  // namespace abele

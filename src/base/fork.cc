#include "base/fork.h"

#include <pthread.h>

#include <atomic>

namespace abele {
namespace {

std::atomic<int64_t> generation{0};

}  // namespace

int64_t forkGeneration() {
  // forkGeneration() registers the handler, so it runs in every fork after the first number was read.
  [[maybe_unused]] static const int registered = ::pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1); });
  return generation.load(std::memory_order_relaxed);
}

}  // namespace abele

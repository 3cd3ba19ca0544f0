#include "runtime/kernels/intra_op_threads.h"

#include <pthread.h>

#include <mutex>
#include <thread>

#include <ATen/Parallel.h>

namespace abele::runtime {
namespace {

std::mutex& oneAtATime() {
  static auto* const instance = new std::mutex;  // devices of static lifetime outlive it otherwise
  return *instance;
}

// A fork leaves it free in parent and child, and the child does not begin with another default.
[[maybe_unused]] const int registered =
    ::pthread_atfork([] { oneAtATime().lock(); }, [] { oneAtATime().unlock(); }, [] { oneAtATime().unlock(); });

}  // namespace

void setIntraOpThreads(int num_threads) {
  const std::lock_guard<std::mutex> lock(oneAtATime());
  // A fresh thread begins with the process-wide default, so it can tell what it is, and set it for nobody else.
  int process_default = 0;
  std::thread([&] { process_default = at::get_num_threads(); }).join();
  at::get_num_threads();  // a thread takes the default over at its first look; later ones keep what was set for it
  at::set_num_threads(num_threads);
  std::thread([&] { at::set_num_threads(process_default); }).join();
}

}  // namespace abele::runtime

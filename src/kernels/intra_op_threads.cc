#include "kernels/intra_op_threads.h"

#include <mutex>
#include <thread>

#include <ATen/Parallel.h>

#include "base/fork.h"

namespace abele::kernels {
namespace {

ProcessMutex& oneAtATime() {
  static auto* const instance = new ProcessMutex;  // devices of static lifetime outlive it otherwise
  return *instance;
}

}  // namespace

void setIntraOpThreads(int num_threads) {
  const std::lock_guard lock(oneAtATime());  // also: a child never begins with another default
  // The first call on a thread takes over the default, which threads must not do at the same time.
  if (at::get_num_threads() == num_threads) return;
  // A fresh thread starts with the process-wide default, so it shows that default without changing it.
  int process_default = 0;
  std::thread([&] { process_default = at::get_num_threads(); }).join();
  at::set_num_threads(num_threads);
  std::thread([&] { at::set_num_threads(process_default); }).join();
}

}  // namespace abele::kernels

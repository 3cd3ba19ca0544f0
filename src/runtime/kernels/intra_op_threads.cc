#include "runtime/kernels/intra_op_threads.h"

#include <mutex>
#include <thread>

#include <ATen/Parallel.h>

namespace abele::runtime {

void setIntraOpThreads(int num_threads) {
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  // A fresh thread begins with the process-wide default, so it can tell what it is, and set it for nobody else.
  int process_default = 0;
  std::thread([&] { process_default = at::get_num_threads(); }).join();
  at::get_num_threads();  // a thread takes the default over at its first look; later ones keep what was set for it
  at::set_num_threads(num_threads);
  std::thread([&] { at::set_num_threads(process_default); }).join();
}

}  // namespace abele::runtime

// Sets the intra-op threads of a worker thread.
#pragma once

namespace abele::kernels {

/// Operators on the calling thread use num_threads threads from now on. at::set_num_threads also changes the default
/// for threads that start later; this function restores that default, and changes no other thread.
/// Threads: safe.
void setIntraOpThreads(int num_threads);

}  // namespace abele::kernels

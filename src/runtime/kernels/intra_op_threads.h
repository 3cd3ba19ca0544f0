// Intra-op threads of a worker thread.
#pragma once

namespace abele::runtime {

/// From now on operators on the calling thread use num_threads threads. at::set_num_threads also changes the default
/// that threads started later begin with; that is put back, and no other thread is touched.
/// Threads: safe.
void setIntraOpThreads(int num_threads);

}  // namespace abele::runtime

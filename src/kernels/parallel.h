// Shares work out among intra-op threads.
#pragma once

#include <cstdint>

#include <c10/util/FunctionRef.h>

namespace abele::kernels {

/// Calls fn(begin, end) for ranges that together cover 0 .. count; all but the last have at least `grain` elements. The
/// ranges run on the intra-op threads of the caller, or on the caller alone if it has only one or the work is small.
/// at::get_thread_num() is below at::get_num_threads(). If several threads work, each operator that fn calls uses one
/// thread. Throws what fn throws.
///
/// It replaces at::parallel_for, a template that runs on one thread in a library that is compiled without OpenMP, as
/// ours is. A second OpenMP in addition to torch's would have threads of its own.
void shareOut(int64_t count, int64_t grain, c10::function_ref<void(int64_t, int64_t)> fn);

}  // namespace abele::kernels

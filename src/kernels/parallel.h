// Divides work among intra-op threads.
#pragma once

#include <cstdint>

#include <c10/util/FunctionRef.h>

namespace abele::kernels {

/// Calls fn(begin, end) for ranges that together cover 0 .. count; all but the last have at least `grain` elements. The
/// ranges run on the intra-op threads of the caller, or on the caller alone if it has only one or the work is small.
/// In fn, at::get_thread_num() is below at::get_num_threads(). If several threads work, each operator that fn calls
/// uses one thread. Throws the errors of fn.
///
/// It replaces at::parallel_for, a template that uses one thread in a library compiled without OpenMP, such as ours.
/// Our own OpenMP would have further threads besides those of torch's.
void shareOut(int64_t count, int64_t grain, c10::function_ref<void(int64_t, int64_t)> fn);

}  // namespace abele::kernels

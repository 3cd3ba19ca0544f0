// Work shared out among intra-op threads.
#pragma once

#include <cstdint>

#include <c10/util/FunctionRef.h>

namespace abele::runtime {

/// Calls fn(begin, end) for ranges that together are 0 .. count, each of at least `grain` but the last: on the intra-op
/// threads of the caller, or on the caller alone where it has one or the work is small. at::get_thread_num() is below
/// at::get_num_threads(), and where several threads work, each operator that fn calls uses one. Throws what fn throws.
///
/// In place of at::parallel_for, a template that runs on one thread wherever a library is compiled without OpenMP, as
/// ours is: a second OpenMP beside torch's would have threads of its own.
void shareOut(int64_t count, int64_t grain, c10::function_ref<void(int64_t, int64_t)> fn);

}  // namespace abele::runtime

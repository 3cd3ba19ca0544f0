#include "base/processor_loops.h"

namespace abele {

Processor processor() {
#if defined(__x86_64__)
  static const Processor found = [] {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Processor::kOther;
    const bool is_wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return is_wide ? Processor::kAvx512 : Processor::kAvx2;
  }();
  return found;
#else
  return Processor::kOther;
#endif
}

}  // namespace abele

#define ABELE_LOOPS avx512
#include "runtime/kernels/norm_loops_impl.h"

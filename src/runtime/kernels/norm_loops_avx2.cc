#define ABELE_LOOPS avx2
#include "runtime/kernels/norm_loops_impl.h"

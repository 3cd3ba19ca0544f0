#define ABELE_LOOPS avx512
#include "kernels/norm_loops_impl.h"

#define ABELE_LOOPS avx2
#include "kernels/norm_loops_impl.h"

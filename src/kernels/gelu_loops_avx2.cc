#define ABELE_LOOPS avx2
#include "kernels/gelu_loops_impl.h"

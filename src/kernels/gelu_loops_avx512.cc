#define ABELE_LOOPS avx512
#include "kernels/gelu_loops_impl.h"

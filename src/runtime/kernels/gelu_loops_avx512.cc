#define ABELE_LOOPS avx512
#include "runtime/kernels/gelu_loops_impl.h"

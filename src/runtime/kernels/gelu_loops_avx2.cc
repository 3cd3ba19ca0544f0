#define ABELE_LOOPS avx2
#include "runtime/kernels/gelu_loops_impl.h"

#define ABELE_LOOPS avx2
#include "operators/gelu_loops_impl.h"

#define ABELE_LOOPS avx512
#include "operators/gelu_loops_impl.h"

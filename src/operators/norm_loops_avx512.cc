#define ABELE_LOOPS avx512
#include "operators/norm_loops_impl.h"

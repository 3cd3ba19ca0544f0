#define ABELE_LOOPS avx2
#include "operators/norm_loops_impl.h"

// Updates of float32 elements in few passes over memory, with the roundings of ATen's vectorised kernels: mul, add with
// alpha (one rounding), addcmul (the last product and the sum: one rounding), addcdiv, lerp. optimizers.cc uses them if
// the processor can run this file, and if a trial gives the same bits as ATen's operators.
#pragma once

#include <cstdint>

#include "kernels/update_formulas.h"

namespace abele::kernels::fused {

/// The weight, the gradient sum, and the moments in the order of optimizers.def, each with `count` elements. Pointers
/// to moments that the update does not have are not read.
using Memory = float* const*;

void sgd(int64_t count, Memory at, unsigned traits, const Hyper& with);
// ATen computes the square roots, because its library rounds them differently from the processor.
void adamStates(int64_t count, Memory at, unsigned traits, const AdamStep<double>& step, const Hyper& with);
void adamWeight(int64_t count, Memory at, float* root, const AdamStep<double>& step, const Hyper& with);
void rmspropStates(int64_t count, Memory at, float* under_root, unsigned traits, const Hyper& with);
void rmspropWeight(int64_t count, Memory at, float* root, unsigned traits, const Hyper& with);

}  // namespace abele::kernels::fused

// Bernoulli numbers, as dropout needs them for its masks.
#pragma once

#include <ATen/core/Generator.h>

namespace at {
class Tensor;
}

namespace abele::kernels {

/// to.bernoulli_(p, generator). ATen makes these numbers one by one, except on Intel's processors. Loops of our own
/// make those of dense float32 tensors together. They are used if a trial on this machine gives ATen's bits and leaves
/// the generator in ATen's state. Requires: a tensor and a generator of the CPU. Throws what bernoulli_ throws.
void drawBernoulli(at::Tensor to, double p, const at::Generator& generator);

}  // namespace abele::kernels

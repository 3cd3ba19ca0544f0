// The gradients of weight and bias of layer normalisation for several micro-batches side by side, each by itself.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace abele::runtime {

/// Rows of all lanes, one behind the other: float32 on the CPU.
struct LaneNorm {
  at::Tensor grad, x;       // [lanes * rows, width], contiguous
  at::Tensor mean, scale;   // [lanes * rows]; scale: 1 / deviation
  at::Tensor weight, bias;  // gradients, [lanes, width]; undefined: not wanted
  int64_t lanes = 1;
};

/// Does a kernel of ours give, for each lane, the bits of ATen's native_layer_norm_backward with this output mask?
/// Tried on random numbers for these sizes, with this thread's number of threads; kept for the process.
bool givesNormGradients(int64_t rows, int64_t width, bool of_input, bool of_weight, bool of_bias);
/// Requires: givesNormGradients.
void normGradientsInto(const LaneNorm& norm);

}  // namespace abele::runtime

// Convolutions whose weight is in the library's own layout, with the bits of ATen's convolution.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

namespace abele::runtime {

/// What at::convolution takes besides its input.
struct ConvolutionOperands {
  at::Tensor weight, bias;  // bias: may be undefined
  std::vector<int64_t> stride, padding, dilation;
  int64_t groups = 1;
};

/// The operator that takes (input, packed weight).
constexpr const char* kPackedConvolution = "mkldnn_prepacked::conv2d_run";

/// The weight and the bias for inputs of these sizes, as kPackedConvolution takes them. A copy: it does not see what is
/// written into them later.
c10::IValue packConvolution(const ConvolutionOperands& operands, at::IntArrayRef input_sizes);

/// Does it give the bits of at::convolution for an input of these sizes? Tried with random numbers, with this thread's
/// number of threads and torch's settings of now; kept for the process. No: also where this build of LibTorch has no
/// such operator.
bool packedConvolutionHasBits(const ConvolutionOperands& operands, at::IntArrayRef input_sizes);

}  // namespace abele::runtime

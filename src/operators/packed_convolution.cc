// What the pass `pack-convolutions` puts into graphs: at::convolution, whose weight a device may keep packed. Packing
// needs the steps of a device (runtime/device/aten); without them it is the plain operator.
#include <ATen/ops/convolution.h>

#include "operators/library.h"

namespace abele::operators {

at::Tensor packedConvolutionKernel(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                   at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                                   bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  return at::convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

}  // namespace abele::operators

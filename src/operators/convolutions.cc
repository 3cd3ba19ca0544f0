// Convolutions for Options.fusion("fast").
#include "kernels/convolutions.h"

#include "operators/library.h"

namespace abele::operators {

at::Tensor convolutionKernel(const at::Tensor& images, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation) {
  at::Tensor out = kernels::fastConvolution(images, weight, {stride, padding, dilation});
  if (bias) out.add_(bias->view({-1, 1, 1}));
  return out;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolutionBackwardKernel(
    const at::Tensor& grad, const at::Tensor& images, const at::Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, std::array<bool, 3> wanted) {
  const kernels::Steps steps{stride, padding, dilation};
  std::tuple<at::Tensor, at::Tensor, at::Tensor> results;
  if (wanted[0]) std::get<0>(results) = kernels::fastImageGradient(grad, images, weight, steps);
  if (wanted[1]) std::get<1>(results) = kernels::fastWeightGradient(grad, images, weight, steps);
  if (wanted[2]) std::get<2>(results) = grad.sum({0, 2, 3});
  return results;
}

}  // namespace abele::operators

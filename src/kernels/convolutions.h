// Convolutions of float32 images for Options.fusion("fast").
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace abele::kernels {

/// How a convolution of two dimensions moves over images [N, channels, height, width]. Weights are [channels of the
/// result, channels, height, width].
struct Steps {
  at::IntArrayRef stride, padding, dilation;  // for height and width
};

/// The convolution and its gradients, each by the faster of two ways: ATen's, and products of the weight with a matrix
/// that has a column for each patch of the images (fastProduct). At the first call of these sizes a trial on its
/// operands chooses, and the choice is kept for the life of the process. An element adds k terms, and is within k * u *
/// (the sum of their absolute values) of the real one. u is half the distance from 1 to the next number. In the result,
/// k is the number of weights for one of its channels. In gradients of images it is the number of weights for one
/// channel of the images, and in gradients of weights the number of places in all images. Requires: dense tensors of
/// float32 on the CPU. Threads: any.
at::Tensor fastConvolution(const at::Tensor& images, const at::Tensor& weight, const Steps& steps);
at::Tensor fastImageGradient(const at::Tensor& grad, const at::Tensor& images, const at::Tensor& weight,
                             const Steps& steps);
at::Tensor fastWeightGradient(const at::Tensor& grad, const at::Tensor& images, const at::Tensor& weight,
                              const Steps& steps);

/// The same by products, without a trial.
at::Tensor convolutionByProducts(const at::Tensor& images, const at::Tensor& weight, const Steps& steps);
at::Tensor imageGradientByProducts(const at::Tensor& grad, const at::Tensor& images, const at::Tensor& weight,
                                   const Steps& steps);
at::Tensor weightGradientByProducts(const at::Tensor& grad, const at::Tensor& images, const at::Tensor& weight,
                                    const Steps& steps);

}  // namespace abele::kernels

// Calls of the operators of library.cc and declarations of their kernels. Only operators/ includes it.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace abele::operators {

/// The operator abele_op::name with this C++ signature.
template <class Signature>
auto operatorOf(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// The kernels. A tensor that a kernel returns shares no memory with its arguments.
at::Tensor printKernel(const at::Tensor& x, std::string title, bool gradient, at::IntArrayRef numbers,
                       std::string float_format, std::vector<std::string> marks);
at::Tensor printDifferentiably(const at::Tensor& x, std::string title, bool gradient, at::IntArrayRef numbers,
                               std::string float_format, std::vector<std::string> marks);
at::Tensor fpsKernel(const at::Tensor& src_PF, const at::Tensor& starts_B, at::IntArrayRef ptr, at::IntArrayRef picks);
at::Tensor nearestKernel(const at::Tensor& x_NF, const at::Tensor& y_MF, const at::Tensor& batch_x_N,
                         const at::Tensor& batch_y_M);
std::tuple<at::Tensor, at::Tensor, at::Tensor> beamSearchKernel(const at::Tensor& probs_TNC,
                                                                const at::Tensor& lengths_N, int64_t blank,
                                                                int64_t beam_width, int64_t top_paths);
at::Tensor allToAllKernel(const at::Tensor& x);
at::Tensor allToAllDifferentiably(const at::Tensor& x);
at::Tensor maskedGradientKernel(const at::Tensor& grad, const at::Tensor& mask, int64_t dim, at::IntArrayRef sizes);
// These work in place: the log-probabilities overwrite x, and the gradient of the logits overwrites the
// log-probabilities. The ...OnCpu kernels allocate no memory of that size.
void logSoftmaxOnCpu(at::Tensor x, int64_t dim);
void logSoftmaxKernel(at::Tensor x, int64_t dim);
void crossEntropyBackwardOnCpu(const at::Tensor& grad, at::Tensor log_probs_NC, const at::Tensor& target_N,
                               const std::optional<at::Tensor>& weight_C, int64_t reduction, int64_t ignore_index,
                               const at::Tensor& total_weight);
void crossEntropyBackwardKernel(const at::Tensor& grad, at::Tensor log_probs_NC, const at::Tensor& target_N,
                                const std::optional<at::Tensor>& weight_C, int64_t reduction, int64_t ignore_index,
                                const at::Tensor& total_weight);
at::Tensor productKernel(const at::Tensor& left, const at::Tensor& right);
at::Tensor& productInto(const at::Tensor& left, const at::Tensor& right, at::Tensor& out);
at::Tensor addedProductKernel(const at::Tensor& term, const at::Tensor& left, const at::Tensor& right);
at::Tensor& addedProductInto(const at::Tensor& term, const at::Tensor& left, const at::Tensor& right, at::Tensor& out);
at::Tensor convolutionKernel(const at::Tensor& images, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation);
std::tuple<at::Tensor, at::Tensor, at::Tensor> convolutionBackwardKernel(
    const at::Tensor& grad, const at::Tensor& images, const at::Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, std::array<bool, 3> wanted);
at::Tensor geluKernel(const at::Tensor& x);
at::Tensor& geluInto(const at::Tensor& x, at::Tensor& out);
at::Tensor geluBackwardKernel(const at::Tensor& grad, const at::Tensor& x);
at::Tensor& geluBackwardInto(const at::Tensor& grad, const at::Tensor& x, at::Tensor& out);
using ThreeTensors = std::tuple<at::Tensor&, at::Tensor&, at::Tensor&>;
std::tuple<at::Tensor, at::Tensor, at::Tensor> layerNormKernel(const at::Tensor& x, at::IntArrayRef shape,
                                                               const at::Tensor& weight, const at::Tensor& bias,
                                                               double eps);
ThreeTensors layerNormInto(const at::Tensor& x, at::IntArrayRef shape, const at::Tensor& weight, const at::Tensor& bias,
                           double eps, at::Tensor& y, at::Tensor& mean, at::Tensor& scale);
std::tuple<at::Tensor, at::Tensor, at::Tensor> layerNormBackwardKernel(const at::Tensor& grad, const at::Tensor& x,
                                                                       at::IntArrayRef shape, const at::Tensor& mean,
                                                                       const at::Tensor& scale,
                                                                       const at::Tensor& weight);
ThreeTensors layerNormBackwardInto(const at::Tensor& grad, const at::Tensor& x, at::IntArrayRef shape,
                                   const at::Tensor& mean, const at::Tensor& scale, const at::Tensor& weight,
                                   at::Tensor& grad_x, at::Tensor& grad_weight, at::Tensor& grad_bias);
void averageStatisticsKernel(const at::Tensor& x, at::Tensor mean, at::Tensor var, const at::Tensor& num_batches);
/// self += scale * other, by ATen's own kernel. Shapes: scale has one element.
void addScaledKernel(at::Tensor self, const at::Tensor& other, const at::Tensor& scale);
void requireEqualKernel(const at::Tensor& x, const at::Tensor& y, bool answer);
void requireSameKernel(const at::Tensor& x, const at::Tensor& expected, std::string reader);
std::vector<at::Tensor> hostCallKernel(at::TensorList inputs, int64_t number);
std::vector<at::Tensor> loopKernel(at::TensorList inputs, int64_t count, int64_t num_carried, at::IntArrayRef written,
                                   std::string body, const std::optional<at::Generator>& generator);
std::vector<at::Tensor> condKernel(const at::Tensor& condition, at::TensorList inputs, int64_t num_then,
                                   at::IntArrayRef shapes, at::IntArrayRef written, std::string then_body,
                                   std::string else_body, const std::optional<at::Generator>& generator);
std::vector<at::Tensor> customKernel(at::TensorList inputs, std::string domain, std::string name, int64_t version,
                                     std::string attributes);
std::vector<at::Tensor> customDifferentiably(at::TensorList inputs, std::string domain, std::string name,
                                             int64_t version, std::string attributes);
std::vector<at::Tensor> customGradientKernel(at::TensorList inputs, at::TensorList outputs, at::TensorList grads,
                                             std::string domain, std::string name, int64_t version,
                                             std::string attributes);

}  // namespace abele::operators

// Registers the operators with LibTorch in namespace abele_op. A capture records them like ATen's, a device looks them
// up by name, and a saved program names them.
#include "operators/library.h"

#include <torch/library.h>

namespace abele::operators {

TORCH_LIBRARY(abele_op, m) {
  m.def("print_tensor(Tensor x, str title, bool gradient, int[] numbers, str float_format, str[] marks) -> Tensor");
  m.def("fps(Tensor src, Tensor starts, int[] ptr, int[] picks) -> Tensor");
  m.def("nearest(Tensor x, Tensor y, Tensor batch_x, Tensor batch_y) -> Tensor");
  m.def(
      "ctc_beam_search(Tensor probs, Tensor lengths, int blank, int beam_width, int top_paths)"
      " -> (Tensor, Tensor, Tensor)");
  m.def("average_statistics(Tensor x, Tensor(a!) mean, Tensor(b!) var, Tensor num_batches) -> ()");
  m.def("add_scaled_(Tensor(a!) self, Tensor other, Tensor scale) -> ()");
  m.def("require_equal(Tensor x, Tensor y, bool answer) -> ()");
  m.def("require_same(Tensor x, Tensor expected, str reader) -> ()");
  m.def("all_to_all(Tensor x) -> Tensor");
  m.def("masked_gradient(Tensor grad, Tensor mask, int dim, int[] sizes) -> Tensor");
  m.def("log_softmax_(Tensor(a!) x, int dim) -> ()");
  m.def(
      "cross_entropy_backward_(Tensor grad, Tensor(a!) log_probs, Tensor target, Tensor? weight, int reduction,"
      " int ignore_index, Tensor total_weight) -> ()");
  m.def("mm(Tensor left, Tensor right) -> Tensor");
  m.def("mm.out(Tensor left, Tensor right, *, Tensor(a!) out) -> Tensor(a!)");
  m.def("addmm(Tensor term, Tensor left, Tensor right) -> Tensor");
  m.def("addmm.out(Tensor term, Tensor left, Tensor right, *, Tensor(a!) out) -> Tensor(a!)");
  m.def(
      "convolution(Tensor images, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation) -> Tensor");
  m.def(
      "convolution_backward(Tensor grad, Tensor images, Tensor weight, int[] stride, int[] padding, int[] dilation,"
      " bool[3] wanted) -> (Tensor, Tensor, Tensor)");
  m.def("gelu(Tensor x) -> Tensor");
  m.def("gelu.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)");
  m.def("gelu_backward(Tensor grad, Tensor x) -> Tensor");
  m.def("gelu_backward.out(Tensor grad, Tensor x, *, Tensor(a!) out) -> Tensor(a!)");
  m.def("layer_norm(Tensor x, int[] shape, Tensor weight, Tensor bias, float eps) -> (Tensor, Tensor, Tensor)");
  m.def(
      "layer_norm.out(Tensor x, int[] shape, Tensor weight, Tensor bias, float eps, *, Tensor(a!) out0,"
      " Tensor(b!) out1, Tensor(c!) out2) -> (Tensor(a!), Tensor(b!), Tensor(c!))");
  m.def(
      "layer_norm_backward(Tensor grad, Tensor x, int[] shape, Tensor mean, Tensor scale, Tensor weight)"
      " -> (Tensor, Tensor, Tensor)");
  m.def(
      "layer_norm_backward.out(Tensor grad, Tensor x, int[] shape, Tensor mean, Tensor scale, Tensor weight, *,"
      " Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2) -> (Tensor(a!), Tensor(b!), Tensor(c!))");
  m.def("host_call(Tensor[] inputs, int number) -> Tensor[]");
  m.def(
      "for_loop(Tensor[] inputs, int count, int num_carried, int[] written, str body, *, Generator? generator=None)"
      " -> Tensor[]");
  m.def(
      "cond(Tensor condition, Tensor[] inputs, int num_then, int[] shapes, int[] written, str then_body,"
      " str else_body, *, Generator? generator=None)"
      " -> Tensor[]");
  m.def("custom_op(Tensor[] inputs, str domain, str name, int version, str attributes) -> Tensor[]");
  m.def(
      "custom_op_gradient(Tensor[] inputs, Tensor[] outputs, Tensor[] grads, str domain, str name, int version,"
      " str attributes) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(abele_op, CPU, m) {
  m.impl("print_tensor", printKernel);
  m.impl("fps", fpsKernel);
  m.impl("nearest", nearestKernel);
  m.impl("ctc_beam_search", beamSearchKernel);
  m.impl("average_statistics", averageStatisticsKernel);
  m.impl("add_scaled_", addScaledKernel);
  m.impl("require_equal", requireEqualKernel);
  m.impl("require_same", requireSameKernel);
  m.impl("masked_gradient", maskedGradientKernel);
  m.impl("log_softmax_", logSoftmaxOnCpu);
  m.impl("mm", productKernel);
  m.impl("mm.out", productInto);
  m.impl("addmm", addedProductKernel);
  m.impl("addmm.out", addedProductInto);
  m.impl("convolution", convolutionKernel);
  m.impl("convolution_backward", convolutionBackwardKernel);
  m.impl("gelu", geluKernel);
  m.impl("gelu.out", geluInto);
  m.impl("gelu_backward", geluBackwardKernel);
  m.impl("gelu_backward.out", geluBackwardInto);
  m.impl("layer_norm", layerNormKernel);
  m.impl("layer_norm.out", layerNormInto);
  m.impl("layer_norm_backward", layerNormBackwardKernel);
  m.impl("layer_norm_backward.out", layerNormBackwardInto);
  m.impl("cross_entropy_backward_", crossEntropyBackwardOnCpu);
}

// This key also gets calls without any tensor.
TORCH_LIBRARY_IMPL(abele_op, CompositeExplicitAutograd, m) {
  m.impl("all_to_all", allToAllKernel);
  m.impl("host_call", hostCallKernel);
  m.impl("log_softmax_", logSoftmaxKernel);
  m.impl("cross_entropy_backward_", crossEntropyBackwardKernel);
  m.impl("for_loop", loopKernel);
  m.impl("cond", condKernel);
  m.impl("custom_op", customKernel);
  m.impl("custom_op_gradient", customGradientKernel);
}

TORCH_LIBRARY_IMPL(abele_op, Autograd, m) {
  m.impl("print_tensor", printDifferentiably);
  m.impl("all_to_all", allToAllDifferentiably);
  m.impl("custom_op", customDifferentiably);
}

}  // namespace abele::operators

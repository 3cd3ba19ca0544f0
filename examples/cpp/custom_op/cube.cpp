// An operator of one's own: scale * x^3, with its gradient. Built as a shared library and loaded before the model is
// compiled: ctypes.cdll.LoadLibrary("libcube.so") in Python, dlopen or linking in C++. Then
//   poptorch.custom_op([x], "Cube", "example.ops", 1, [x], attributes={"scale": 2.0})
#include <ATen/core/Tensor.h>
#include <ATen/ops/mul.h>

#include "abele/custom_op.h"

namespace {

using abele::CustomAttributes;
using abele::CustomContext;
using Tensors = abele::CustomOp::Tensors;
using Infos = abele::CustomOp::Infos;

at::Tensor scaled(const at::Tensor& x, const CustomAttributes& attributes, double factor) {
  return at::mul(x, at::Scalar(factor * attributes.get<float>("scale", 1.0f)));
}

const abele::RegisterCustomOp cube({
    .domain = "example.ops",
    .name = "Cube",
    .version = 1,
    .min_inputs = 1,
    .max_inputs = 1,
    .infer = [](const Infos& inputs, const CustomAttributes&) { return inputs; },
    .forward =
        [](const CustomContext&, const Tensors& inputs, const CustomAttributes& attributes) {
          return Tensors{scaled(at::mul(at::mul(inputs[0], inputs[0]), inputs[0]), attributes, 1)};
        },
    .backward =
        [](const CustomContext&, const Tensors& inputs, const Tensors&, const Tensors& grads,
           const CustomAttributes& attributes) {
          return Tensors{scaled(at::mul(at::mul(inputs[0], inputs[0]), grads[0]), attributes, 3)};
        },
});

}  // namespace

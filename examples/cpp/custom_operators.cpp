// An operator of one's own (custom_op/cube.cpp) in training: the library is loaded, the operator is used by its name,
// and its gradient trains a parameter as torch's own operators do.
#include <torch/torch.h>

#include <abele/abele.h>

#include <cstdio>
#include <string>

#include <dlfcn.h>

namespace {

/// scale * x^3
at::Tensor cube(const at::Tensor& x, float scale) {
  abele::CustomAttributes attributes;
  attributes.set("scale", scale);
  const abele::TensorInfo like_x{static_cast<int>(x.scalar_type()), x.sizes().vec()};
  return abele::ops::customOp({x}, "example.ops", "Cube", /*version=*/1, {like_x}, attributes)[0];
}

struct Curve : torch::nn::Module {
  Curve() : shift(register_parameter("shift", torch::zeros({4}))) {}
  at::Tensor shift;
};

}  // namespace

int main(int, char** argv) {
  const std::string program = argv[0];
  const std::string library = program.substr(0, program.find_last_of('/') + 1) + "libcube.so";
  if (dlopen(library.c_str(), RTLD_NOW) == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }

  torch::manual_seed(0);
  const at::Tensor x = torch::randn({1, 4}), target = torch::randn({1, 4});
  Curve eager, compiled;
  const auto loss = [](const at::Tensor& out, const at::Tensor& target) { return torch::mse_loss(out, target); };
  loss(2 * (x + eager.shift).pow(3), target).backward();
  const at::Tensor expected = -0.1 * eager.shift.grad();

  auto model = abele::trainingModel(
      compiled, [&](at::Tensor x, at::Tensor target) { return loss(cube(x + compiled.shift, 2), target); }, {},
      abele::optim::SGD{.lr = 0.1});
  model(x, target);
  model.copyWeightsToHost();
  const bool close = torch::allclose(compiled.shift, expected);
  std::printf("the gradient of the operator: %s\n", close ? "as torch's own" : "WRONG");

  try {
    abele::ops::customOp({x}, "example.ops", "Square", 1, {{static_cast<int>(x.scalar_type()), {1, 4}}});
  } catch (const abele::UserError& error) {
    std::printf("refused: %s\n", abele::errorCodeText(error.code()));
  }
  return close ? 0 : 1;
}

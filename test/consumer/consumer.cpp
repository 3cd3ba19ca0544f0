// Trains a two-stage pipeline with the installed library and checks it against eager LibTorch.
#include <torch/torch.h>

#include <abele/abele.h>

#include <cstdio>

#if defined(ABELE_CHECK) || defined(ABELE_REQUIRE)
#error "the library's own macros are seen by programs"
#endif

int main() {
  at::set_num_threads(1);
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(4, 16), torch::nn::ReLU(), torch::nn::Linear(16, 1));
  const auto forward = [&](at::Tensor x, at::Tensor y) {
    abele::Block::start("lower", 0);
    const at::Tensor h = net[1]->as<torch::nn::ReLU>()->forward(net[0]->as<torch::nn::Linear>()->forward(x));
    abele::Block::start("upper", 1);
    return torch::mse_loss(net[2]->as<torch::nn::Linear>()->forward(h), y);
  };
  const at::Tensor x = torch::randn({32, 4}), y = x.sum(1, /*keepdim=*/true);
  const float before = forward(x.narrow(0, 24, 8), y.narrow(0, 24, 8)).item<float>();

  abele::Options options;
  options.threadsPerDevice(1).Training().gradientAccumulation(4);
  auto model = abele::trainingModel(net, forward, options, abele::optim::SGD{.lr = 0.05});
  const float first = model(x, y)[0].item<float>();
  float last = first;
  for (int step = 0; step < 50; ++step) last = model(x, y)[0].item<float>();
  std::fputs(model.report().c_str(), stdout);

  try {
    model(x.narrow(0, 0, 6), y.narrow(0, 0, 6));
    std::puts("six rows were split into four micro-batches");
    return 1;
  } catch (const abele::UserError& error) {
    std::printf("refused: %s\n", abele::errorCodeText(error.code()));
  }
  std::printf("abele %s, loss %.4f -> %.4f\n", abele::version(), first, last);
  return first == before && last < 0.2f * first ? 0 : 1;
}

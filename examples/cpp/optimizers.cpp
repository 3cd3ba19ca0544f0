// Parameter groups, and a learning rate that falls while the compiled program stays.
#include <torch/torch.h>

#include <abele/abele.h>

#include <cstdio>
#include <vector>

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(4, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
  const at::Tensor x = torch::randn({64, 4}), target = x.sum(1, /*keepdim=*/true);

  // The first layer learns slowly, all others as the second group says.
  const auto groups = [](double rate) {
    return std::vector<abele::optim::AdamW>{{.lr = 0.1 * rate, .parameters = {"0"}},
                                            {.lr = rate, .weight_decay = 0, .parameters = {}}};
  };
  auto model = abele::trainingModel(
      net, [&](at::Tensor rows, at::Tensor wanted) { return torch::mse_loss(net->forward(rows), wanted); }, {},
      groups(0.02));
  const float first = model(x, target)[0].item<float>();
  float last = first;
  for (int step = 1; step <= 100; ++step) {
    model.setOptimizer(groups(0.02 * (1 - step / 101.0)));
    last = model(x, target)[0].item<float>();
  }
  std::printf("loss %.4f -> %.4f\n", first, last);
  return last < 0.2f * first ? 0 : 1;
}

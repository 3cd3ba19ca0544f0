// Goes on with a program that Python saved: loads the file, runs steps, prints each loss with all its bits.
//   continue_training FILE STEPS ROWS
#include <torch/torch.h>

#include <abele/abele.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int64_t steps = std::atoi(argv[2]), rows = std::atoi(argv[3]);
  try {
    auto model = abele::loadTrainingModel(argv[1], abele::Options().threadsPerDevice(1));
    torch::manual_seed(7);
    for (int64_t step = 0; step < steps; ++step) {
      const at::Tensor x = torch::randn({rows, 6}), target = torch::randn({rows, 3});
      std::printf("%a\n", model(x, target).back().item<float>());
    }
    for (const auto& [name, tensor] : model.stateDict())
      std::printf("%s %a\n", name.c_str(), tensor.to(at::kDouble).sum().item<double>());
  } catch (const abele::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

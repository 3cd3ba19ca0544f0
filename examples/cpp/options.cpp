// How many rows a call takes, what comes back, and what an option refuses.
#include <torch/torch.h>

#include <abele/abele.h>

#include <cstdio>
#include <utility>

int main() {
  abele::Options options;
  options.deviceIterations(2).outputMode(abele::OutputMode::kAll).randomSeed(7).threadsPerDevice(1);
  options.Training().gradientAccumulation(3);

  torch::manual_seed(0);
  torch::nn::Linear net(4, 2);
  auto model = abele::trainingModel(
      net,
      [&](at::Tensor x, at::Tensor target) {
        const at::Tensor out = net(x);
        return std::pair{out, torch::mse_loss(out, target)};
      },
      options);

  const int64_t rows = options.combinedBatchSize(/*batch_size=*/5);
  const auto results = model(torch::randn({rows, 4}), torch::randn({rows, 2}));
  std::printf("a call takes %ld rows and returns %ld outputs and %ld losses\n", rows, results[0].size(0),
              results[1].size(0));

  try {
    options.deviceIterations(0);
  } catch (const abele::UserError& error) {
    std::printf("refused: %s\n", abele::errorCodeText(error.code()));
  }
}

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

  // The model has frozen its options, so that no change goes unnoticed; a copy can be changed.
  const auto codeOf = [](auto call) {
    try {
      call();
    } catch (const abele::UserError& error) {
      return abele::errorCodeText(error.code());
    }
    return "nothing";
  };
  std::printf("frozen: %s\n", codeOf([&] { options.deviceIterations(4); }));
  abele::Options copy = options;
  std::printf("refused: %s\n", codeOf([&] { copy.deviceIterations(0); }));

  // The JSON form, which POPTORCH_DEFAULT_OPTIONS takes too.
  copy = abele::Options().fromJson(R"({"deviceIterations": 2, "outputMode": "OutputMode.All"})");
  std::printf("json: %s\n", copy.toJson().c_str());
}

// Phases, tensors off chip and an offloaded module through the public C++ API: the bits of an ordinary pipeline.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "abele/abele.h"

namespace off_chip_test {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    torch::manual_seed(1);
    for (int i = 0; i < 4; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(16, 16)));
  }
  at::Tensor forward(at::Tensor x) {
    for (int i = 0; i < 4; ++i) {
      abele::Block::start(std::to_string(i), 0);
      x = torch::relu(layers[i](x));
    }
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Net);

std::vector<at::Tensor> train(Net net, abele::Options options) {
  options.threadsPerDevice(1).Training().gradientAccumulation(2);
  auto model = abele::trainingModel(
      net, [net](at::Tensor x, at::Tensor y) mutable { return torch::mse_loss(net(x), y); }, options,
      abele::optim::AdamW{.lr = 0.1});
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({6, 16}), y = torch::randn({6, 16});
  std::vector<at::Tensor> results;
  for (int step = 0; step < 3; ++step) results.push_back(model(x, y)[0]);
  model.copyWeightsToHost();
  for (const at::Tensor& p : net->parameters()) results.push_back(p.detach().clone());
  return results;
}

void expectSame(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(torch::equal(ours[i], theirs[i])) << i;
}

TEST(OffChip, PhasesInAFileGiveTheBitsOfAPipeline) {
  const auto expected = train(Net(), abele::Options());
  for (const abele::Liveness liveness :
       {abele::Liveness::kAlwaysLive, abele::Liveness::kOffChipAfterFwd, abele::Liveness::kOffChipAfterFwdNoOverlap}) {
    abele::Options options;
    options.setExecutionStrategy(abele::SerialPhasedExecution({"0", "1", "2", "3"}).setTensorsLiveness(liveness));
    options.offChipMemoryLimit(0);
    Net net;
    abele::offload(*net);
    expectSame(train(net, options), expected);
  }
}

TEST(OffChip, LocationsOfAPipeline) {
  abele::Options options;
  options.TensorLocations().setOptimizerLocation(abele::TensorLocationSettings().useOnChipStorage(false));
  options.offChipMemoryLimit(0);
  expectSame(train(Net(), options), train(Net(), abele::Options()));
}

TEST(OffChip, AFolderThatIsNoneIsRefused) {
  abele::Options options;
  options.setExecutionStrategy(abele::SerialPhasedExecution({"0", "1", "2", "3"}));
  options.offChipMemoryLimit(0).offChipFolder("/proc/no-such-folder");
  try {
    train(Net(), options);
    FAIL() << "no error";
  } catch (const abele::Error& error) {
    EXPECT_EQ(std::string(abele::errorCodeText(error.code())), "E0605");
  }
  Net net;
  EXPECT_THROW(abele::offload(*net, "/proc/no-such-folder"), abele::Error);
}

}  // namespace off_chip_test

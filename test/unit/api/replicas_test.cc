// Replicas through the public C++ API.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "abele/abele.h"
#include "two_layers.h"

namespace replicas_test {

namespace nn = torch::nn;
using abele::test::TwoLayers;

TEST(Replicas, TrainAsEagerDoesReplicaByReplica) {
  constexpr int64_t kReplicas = 3, kAccumulation = 3, kRows = 2;
  torch::set_num_threads(1);
  TwoLayers ours, eager;
  abele::Options options;
  options.replicationFactor(kReplicas).threadsPerDevice(1).Training().gradientAccumulation(kAccumulation);
  auto model = abele::trainingModel(
      ours, [ours](at::Tensor x, at::Tensor y) mutable { return torch::mse_loss(ours(x), y); }, options,
      abele::optim::SGD{.lr = 0.1});
  torch::manual_seed(2);
  const int64_t rows = options.combinedBatchSize(kRows);
  ASSERT_EQ(rows, kRows * kReplicas * kAccumulation);
  const at::Tensor x = torch::randn({rows, 4}), y = torch::randn({rows, 2});
  torch::optim::SGD optimizer(eager->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    ASSERT_EQ(model(x, y)[0].numel(), kReplicas);
    std::vector<std::vector<at::Tensor>> sums(kReplicas);
    for (int64_t k = 0; k < kAccumulation * kReplicas; ++k) {
      const at::Tensor loss = torch::mse_loss(eager(x.narrow(0, k * kRows, kRows)), y.narrow(0, k * kRows, kRows));
      auto gradients =
          torch::autograd::grad({loss}, eager->parameters(), {torch::full({}, 1.0 / (kReplicas * kAccumulation))});
      auto& sum = sums[k % kReplicas];
      if (sum.empty())
        sum = gradients;
      else
        for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + gradients[i];
    }
    for (size_t i = 0; i < sums[0].size(); ++i)
      eager->parameters()[i].mutable_grad() = sums[0][i] + sums[1][i] + sums[2][i];
    optimizer.step();
  }
  model.copyWeightsToHost();
  for (size_t i = 0; i < eager->parameters().size(); ++i)
    EXPECT_TRUE(torch::equal(ours->parameters()[i], eager->parameters()[i])) << i;
}

TEST(Replicas, DealWeightsAndState) {
  const auto train = [](bool dealt) {
    TwoLayers net;
    abele::Options options;
    options.replicationFactor(2).threadsPerDevice(1).deviceIterations(2);
    if (dealt)
      options.TensorLocations()
          .setWeightLocation(abele::TensorLocationSettings().useReplicatedTensorSharding())
          .setOptimizerLocation(
              abele::TensorLocationSettings().useReplicatedTensorSharding().minElementsForReplicatedTensorSharding(1));
    auto model = abele::trainingModel(
        net, [net](at::Tensor x) mutable { return abele::identityLoss(net(x).square().mean()); }, options,
        abele::optim::AdamW{.lr = 0.1});
    torch::manual_seed(2);
    for (int step = 0; step < 3; ++step) model(torch::randn({8, 4}));
    model.copyWeightsToHost();
    return net->parameters();
  };
  const auto whole = train(false), dealt = train(true);
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(torch::equal(whole[i], dealt[i])) << i;
}

struct ScaleImpl : nn::Module {
  ScaleImpl() { w = register_parameter("w", torch::tensor({1.0f, 2.0f})); }
  at::Tensor w;
};
TORCH_MODULE(Scale);

TEST(Replicas, HaveWeightsOfTheirOwn) {
  Scale net;
  auto model = abele::trainingModel(
      net, [net](at::Tensor x) mutable { return abele::identityLoss((net->w * x).sum()); },
      abele::Options().replicationFactor(2), abele::optim::SGD{.lr = 1.0});
  model.replicaGrouping("w", abele::CommGroupType::kNoGrouping, 1);
  model(torch::tensor({4.0f, 6.0f}));  // mean over two replicas: gradients 2 and 3
  model.copyWeightsToHost();
  EXPECT_TRUE(torch::equal(net->w, torch::tensor({-1.0f, -1.0f})));
  EXPECT_THROW(model.replicaGrouping("w", abele::CommGroupType::kAll, 2), abele::Error);
}

TEST(Replicas, RefuseWhatDoesNotFit) {
  Scale net;
  const auto make = [&](int64_t replicas, int64_t devices) {
    return abele::inferenceModel(
        net, [net](at::Tensor x) mutable { return x * 2; },
        abele::Options().replicationFactor(replicas).devices(devices));
  };
  EXPECT_THROW(make(4, 3)(torch::ones({4})), abele::Error);
  EXPECT_THROW(make(2, 0)(torch::ones({3})), abele::Error);
  EXPECT_TRUE(torch::equal(make(2, 2)(torch::ones({2}))[0], torch::full({2}, 2.0f)));
}

}  // namespace replicas_test

// Models of modules that share submodules: an inference has the weights that a training of another module left.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "abele/abele.h"

namespace abele::test::shared_submodules_test {

struct Net : torch::nn::Module {
  explicit Net(torch::nn::Sequential shared) : encode(std::move(shared)) {
    register_module("encode", encode);
    register_module("decode", decode);
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    return torch::mse_loss(decode(encode->forward(x)), y);
  }
  torch::nn::Sequential encode;
  torch::nn::Linear decode = torch::nn::Linear(8, 2);
};

torch::nn::Sequential newEncoder() {
  torch::nn::Sequential encoder(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8));
  encoder->eval();
  return encoder;
}

Options ownMemory(bool shares) {
  Options options;
  options.shareWeights(shares);
  return options;
}

class SharedSubmodules : public testing::TestWithParam<bool> {};

TEST_P(SharedSubmodules, InferenceOfAPartFollowsTheTrainingOfTheWhole) {
  Net net(newEncoder());
  const at::Tensor x = torch::randn({6, 4}), y = torch::randn({6, 2});
  const Options options = ownMemory(GetParam());
  const auto train = [&] { return trainingModel(net, options, optim::SGD{.lr = 0.5, .momentum = 0.9}); };
  InferenceModel features = inferenceModel(net.encode, options);
  const at::Tensor before = features(x)[0];
  std::optional<TrainingModel> training = train();
  const auto expectNewest = [&] {
    const at::Tensor after = features(x)[0];
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(torch::equal(after, before));
    EXPECT_TRUE(torch::equal(after, net.encode->forward(x)));
  };
  for (int step = 0; step < 3; ++step) {
    (*training)(x, y);
    expectNewest();
  }
  training.reset();
  expectNewest();
  training.emplace(train());  // another model of the same module
  (*training)(x, y);
  expectNewest();
}

INSTANTIATE_TEST_SUITE_P(Memory, SharedSubmodules, testing::Bool());

TEST_P(SharedSubmodules, TrainingsTakeTurns) {
  const auto make = [] {
    torch::manual_seed(3);
    torch::nn::Sequential encoder = newEncoder();
    return std::pair(Net(encoder), Net(encoder));
  };
  auto [a, b] = make();
  auto [eager_a, eager_b] = make();
  const Options options = ownMemory(GetParam()).threadsPerDevice(at::get_num_threads());
  std::optional<TrainingModel> train_a = trainingModel(a, options, optim::SGD{.lr = 0.1, .momentum = 0.9});
  std::optional<TrainingModel> train_b = trainingModel(b, options, optim::SGD{.lr = 0.1, .momentum = 0.9});
  torch::optim::SGD sgd_a(eager_a.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD sgd_b(eager_b.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (const bool is_a : {true, false, true, true, false, false, true}) {
    const at::Tensor x = torch::randn({6, 4}), y = torch::randn({6, 2});
    Net& net = is_a ? eager_a : eager_b;
    torch::optim::SGD& sgd = is_a ? sgd_a : sgd_b;
    sgd.zero_grad();
    const at::Tensor expected = net.forward(x, y);
    expected.backward();
    sgd.step();
    EXPECT_TRUE(torch::equal((*(is_a ? train_a : train_b))(x, y)[0], expected));
  }
  train_a.reset();
  train_b.reset();
  for (size_t i = 0; i < a.parameters().size(); ++i) {
    EXPECT_TRUE(torch::equal(a.parameters()[i], eager_a.parameters()[i])) << i;
    EXPECT_TRUE(torch::equal(b.parameters()[i], eager_b.parameters()[i])) << i;
  }
}

TEST(SharedSubmodule, TheEndOfATrainingWaitsForThoseWhoCopyItsWeights) {
  const at::Tensor x = torch::randn({6, 4}), y = torch::randn({6, 2});
  torch::nn::Sequential encode = newEncoder();
  InferenceModel features = inferenceModel(encode, ownMemory(false));
  features.compile(x);
  std::atomic<bool> ends = false;
  std::thread reader([&] {
    while (!ends) features(x);
  });
  for (int i = 0; i < 20; ++i) {
    Net net(encode);
    TrainingModel training = trainingModel(net, ownMemory(false), optim::SGD{.lr = 0.5});
    training(x, y);
  }
  ends = true;
  reader.join();
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(torch::equal(features(x)[0], encode->forward(x)));
}

}  // namespace abele::test::shared_submodules_test

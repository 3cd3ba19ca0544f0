// Inputs of other kinds: each kind has a compiled program, and training continues from one program to the other.
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "../../support/code_of.h"
#include "abele/abele.h"
#include "two_layers.h"

namespace programs_test {

using abele::test::codeOf;
using abele::test::TwoLayers;

constexpr int64_t kMicroBatches = 2;

abele::Options accumulating() {
  abele::Options options;
  options.threadsPerDevice(1).Training().gradientAccumulation(kMicroBatches);
  return options;
}

at::Tensor lossOf(TwoLayers& net, const at::Tensor& x, const at::Tensor& y) { return torch::mse_loss(net(x), y); }

abele::TrainingModel trainingModel(TwoLayers net) {
  return abele::trainingModel(
      net, [net](at::Tensor x, at::Tensor y) mutable { return lossOf(net, x, y); }, accumulating(),
      abele::optim::SGD{.lr = 0.05, .momentum = 0.9});
}

void eagerStep(TwoLayers& net, torch::optim::Optimizer& optimizer, const at::Tensor& x, const at::Tensor& y) {
  optimizer.zero_grad();
  const int64_t rows = x.size(0) / kMicroBatches;
  for (int64_t k = 0; k < kMicroBatches; ++k)
    (lossOf(net, x.narrow(0, k * rows, rows), y.narrow(0, k * rows, rows)) / double{kMicroBatches}).backward();
  optimizer.step();
}

TEST(Programs, APartialLastBatchTrainsAsEagerDoes) {
  at::set_num_threads(1);
  TwoLayers net, eager;
  auto model = trainingModel(net);
  torch::optim::SGD optimizer(eager->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (const int64_t rows : {12, 4, 12, 4}) {
    const at::Tensor x = torch::randn({rows, 4}), y = torch::randn({rows, 2});
    model(x, y);
    eagerStep(eager, optimizer, x, y);
  }
  EXPECT_EQ(model.numPrograms(), 2);
  model.copyWeightsToHost();
  for (const auto& item : eager->named_parameters())
    EXPECT_TRUE(torch::equal(item.value(), net->named_parameters()[item.key()])) << item.key();
}

TEST(Programs, RandomNumbersGoOn) {
  at::set_num_threads(1);
  const auto dropped = [](std::vector<int64_t> rows) {
    abele::Options options;
    options.threadsPerDevice(1).randomSeed(7);
    auto model = abele::inferenceModel([](at::Tensor x) { return torch::dropout(x, 0.5, true); }, options);
    std::vector<at::Tensor> results;
    for (const int64_t n : rows) results.push_back(model(torch::ones({n}))[0]);
    return results;
  };
  // A program for other inputs runs in between, and takes its numbers from the same stream.
  const std::vector<at::Tensor> alone = dropped({64, 64}), between = dropped({64, 16, 64});
  EXPECT_TRUE(torch::equal(alone[0], between[0]));
  EXPECT_FALSE(torch::equal(between[0], between[2]));
  EXPECT_TRUE(torch::equal(alone[1].narrow(0, 0, 16), between[1]));
}

TEST(Programs, InferenceTakesAnyNumberOfRowsTypesAndStrides) {
  at::set_num_threads(1);
  auto model = abele::inferenceModel([](at::Tensor x) { return x.sum(0) * 2; });
  const std::vector<at::Tensor> inputs = {torch::randn({5, 4}), torch::randn({3, 4}), torch::randn({4, 5}).t(),
                                          torch::randint(0, 9, {5, 4}), torch::randn({5, 4}, at::kDouble)};
  for (int round = 0; round < 2; ++round)
    for (const at::Tensor& input : inputs) {
      const at::Tensor result = model(input)[0];
      EXPECT_TRUE(torch::equal(result, input.sum(0) * 2)) << input.sizes() << input.dtype();
      EXPECT_EQ(result.dtype(), input.sum(0).dtype());
    }
  EXPECT_EQ(model.numPrograms(), 5);
  // The stride of an empty dimension has no meaning.
  model(inputs[1].narrow(0, 0, 1));
  model(torch::randn({4, 1}).t());
  EXPECT_EQ(model.numPrograms(), 6);
}

TEST(Programs, ReportsAreOfTheOneThatRanLast) {
  auto model = abele::inferenceModel([](at::Tensor x) { return x + 1; });
  model(torch::ones({3, 4}));
  EXPECT_NE(model.graphText().find("f32[3,4]"), std::string::npos) << model.graphText();
  model(torch::ones({7, 4}));
  EXPECT_EQ(model.graphText().find("f32[3,4]"), std::string::npos);
  EXPECT_NE(model.graphText().find("f32[7,4]"), std::string::npos);
  EXPECT_FALSE(model.planText().empty());
  EXPECT_NE(model.executableText().find("aten::add"), std::string::npos) << model.executableText();
}

TEST(Programs, AProgramThatCannotBeMadeLeavesTheOthers) {
  at::set_num_threads(1);
  TwoLayers net, eager;
  auto model = trainingModel(net);
  torch::optim::SGD optimizer(eager->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const at::Tensor x = torch::randn({12, 4}), y = torch::randn({12, 2});
  model(x, y);
  eagerStep(eager, optimizer, x, y);
  EXPECT_EQ(codeOf([&] { model(torch::randn({5, 4}), torch::randn({5, 2})); }), "E0703");
  EXPECT_ANY_THROW(model(torch::randn({4, 3}), torch::randn({4, 2})));  // the first layer takes four columns
  EXPECT_EQ(codeOf([&] { model(x, y, x); }), "E0704");
  EXPECT_EQ(model.numPrograms(), 1);
  model(x, y);
  eagerStep(eager, optimizer, x, y);
  model.copyWeightsToHost();
  EXPECT_TRUE(torch::equal(net->second->weight, eager->second->weight));
}

TEST(Programs, AnInferenceModelFollowsTheTrainingInEachOfThem) {
  at::set_num_threads(1);
  TwoLayers net;
  auto training = trainingModel(net);
  auto inference = abele::inferenceModel(net, [net](at::Tensor x) mutable { return net(x); });
  for (const int64_t rows : {4, 8, 4}) {
    training(torch::randn({rows, 4}), torch::randn({rows, 2}));
    const at::Tensor x = torch::randn({rows, 4});
    const at::Tensor result = inference(x)[0];
    training.copyWeightsToHost();
    torch::NoGradGuard no_grad;
    EXPECT_TRUE(torch::equal(result, net(x)));
  }
}

}  // namespace programs_test

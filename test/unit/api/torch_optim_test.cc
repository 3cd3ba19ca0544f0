// LibTorch's optimizers and schedulers control the device's own optimizer.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace torch_optim_test {

namespace nn = torch::nn;
using abele::test::codeOf;
using at::Tensor;

nn::Sequential makeNet() {
  torch::manual_seed(1);
  return nn::Sequential(nn::Linear(4, 8), nn::Tanh(), nn::Linear(8, 2));
}

struct Batch {
  Batch() {
    torch::manual_seed(2);
    x = torch::randn({8, 4});
    y = torch::randn({8, 2});
  }
  Tensor x, y;
};

abele::TrainingModel train(nn::Sequential net, const torch::optim::Optimizer& optimizer) {
  at::set_num_threads(1);
  return abele::trainingModel(
      net, [net](Tensor x, Tensor y) mutable { return torch::mse_loss(net->forward(x), y); },
      abele::Options().threadsPerDevice(1), optimizer);
}

/// Runs steps in eager LibTorch and on the device, with a scheduler each. Returns the largest difference of a weight.
template <class TorchOptimizer, class TorchOptions>
double differenceAfterSteps(const TorchOptions& first, const TorchOptions& second, at::ScalarType type = at::kFloat) {
  Batch batch;
  batch.x = batch.x.to(type);
  batch.y = batch.y.to(type);
  const auto optimizerOf = [&](nn::Sequential net) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(net[0]->parameters(), std::make_unique<TorchOptions>(first));
    groups.emplace_back(net[2]->parameters(), std::make_unique<TorchOptions>(second));
    return TorchOptimizer(groups, first);
  };
  nn::Sequential eager = makeNet(), net = makeNet();
  eager->to(type);
  net->to(type);
  TorchOptimizer host = optimizerOf(eager), device = optimizerOf(net);
  torch::optim::StepLR host_rate(host, 2, 0.5), device_rate(device, 2, 0.5);
  auto model = train(net, device);
  for (int step = 0; step < 6; ++step) {
    host.zero_grad();
    torch::mse_loss(eager->forward(batch.x), batch.y).backward();
    host.step();
    host_rate.step();
    model(batch.x, batch.y);
    device_rate.step();
    model.setOptimizer(device);
  }
  model.copyWeightsToHost();
  double most = 0;
  for (const auto& item : eager->named_parameters())
    most = std::max(most, (item.value() - net->named_parameters()[item.key()]).abs().max().template item<double>());
  return most;
}

TEST(TorchOptim, StepsAreThoseOfLibTorch) {
  using torch::optim::AdamOptions, torch::optim::AdamWOptions, torch::optim::RMSpropOptions, torch::optim::SGDOptions;
  EXPECT_EQ(differenceAfterSteps<torch::optim::SGD>(SGDOptions(0.1).momentum(0.9).weight_decay(0.01),
                                                    SGDOptions(0.05).momentum(0.5).nesterov(true)),
            0);
  EXPECT_EQ(
      differenceAfterSteps<torch::optim::RMSprop>(RMSpropOptions(0.01).alpha(0.9), RMSpropOptions(0.02).momentum(0.5)),
      0);
  EXPECT_EQ(differenceAfterSteps<torch::optim::RMSprop>(RMSpropOptions(0.01).centered(true),
                                                        RMSpropOptions(0.02).centered(true).momentum(0.5)),
            0);
  EXPECT_EQ(differenceAfterSteps<torch::optim::Adam>(AdamOptions(0.01).betas({0.8, 0.9}),
                                                     AdamOptions(0.02).weight_decay(0.1)),
            0);
  EXPECT_EQ(differenceAfterSteps<torch::optim::AdamW>(AdamWOptions(0.01).eps(1e-6), AdamWOptions(0.02)), 0);
}

TEST(TorchOptim, StepsAreThoseOfLibTorchInEveryType) {
  using torch::optim::AdamOptions, torch::optim::AdamWOptions, torch::optim::RMSpropOptions, torch::optim::SGDOptions;
  for (const at::ScalarType type : {at::kDouble, at::kHalf, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(type));
    EXPECT_EQ(differenceAfterSteps<torch::optim::SGD>(SGDOptions(0.1).momentum(0.9),
                                                      SGDOptions(0.05).momentum(0.5).nesterov(true), type),
              0);
    EXPECT_EQ(differenceAfterSteps<torch::optim::RMSprop>(RMSpropOptions(0.01).eps(1e-4).centered(true).momentum(0.7),
                                                          RMSpropOptions(0.02).eps(1e-4), type),
              0);
    EXPECT_EQ(differenceAfterSteps<torch::optim::Adam>(AdamOptions(0.01).eps(1e-4),
                                                       AdamOptions(0.02).eps(1e-4).weight_decay(0.1), type),
              0);
    EXPECT_EQ(
        differenceAfterSteps<torch::optim::AdamW>(AdamWOptions(0.01).eps(1e-4), AdamWOptions(0.02).eps(1e-4), type), 0);
  }
}

TEST(TorchOptim, FormulasAreThoseOfTheOptimizerThatWasSetLast) {
  const Batch batch;
  const auto weights = [&](bool first, bool second) {
    nn::Sequential net = makeNet();
    auto model = abele::trainingModel(
        net, [net](Tensor x, Tensor y) mutable { return torch::mse_loss(net->forward(x), y); },
        abele::Options().threadsPerDevice(1), abele::optim::AdamW{.lr = 0.01, .libtorch = first});
    for (int step = 0; step < 6; ++step) model(batch.x, batch.y);
    model.setOptimizer(abele::optim::AdamW{.lr = 0.01, .libtorch = second});
    for (int step = 0; step < 6; ++step) model(batch.x, batch.y);
    EXPECT_EQ(std::get<std::vector<abele::optim::AdamW>>(model.optimizer().groups)[0].libtorch, second);
    model.copyWeightsToHost();
    return net[0]->parameters()[0].detach().clone();
  };
  const Tensor python = weights(false, false), libtorch = weights(true, true);
  EXPECT_FALSE(torch::equal(python, libtorch));
  EXPECT_FALSE(torch::equal(weights(true, false), libtorch));
  EXPECT_FALSE(torch::equal(weights(false, true), python));
}

TEST(TorchOptim, VerifyKnowsTheFormulas) {
  at::set_num_threads(1);
  const Batch batch;
  nn::Sequential net = makeNet();
  const torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
  auto model = train(net, optimizer);
  const abele::Verification proof =
      abele::verify(model, std::tuple(batch.x, batch.y), std::tuple(batch.y.repeat({1, 2}), batch.y));
  EXPECT_TRUE(proof.equal()) << proof.text;
}

TEST(TorchOptim, ParametersInNoGroupStayAsTheyAre) {
  const Batch batch;
  nn::Sequential net = makeNet();
  const Tensor first = net[0]->parameters()[0].clone(), last = net[2]->parameters()[0].clone();
  torch::optim::SGD optimizer(net[2]->parameters(), 0.1);
  auto model = train(net, optimizer);
  model(batch.x, batch.y);
  model.copyWeightsToHost();
  EXPECT_TRUE(torch::equal(first, net[0]->parameters()[0]));
  EXPECT_FALSE(torch::equal(last, net[2]->parameters()[0]));
}

TEST(TorchOptim, WhatTheDeviceDoesNotHaveIsRefused) {
  nn::Sequential net = makeNet(), other = makeNet();
  const auto codeWith = [&](const torch::optim::Optimizer& optimizer) {
    return codeOf([&] { train(net, optimizer); });
  };
  EXPECT_EQ(codeWith(torch::optim::Adagrad(net->parameters(), 0.1)), "E0706");
  EXPECT_EQ(codeWith(torch::optim::LBFGS(net->parameters(), 0.1)), "E0706");
  EXPECT_EQ(codeWith(torch::optim::Adam(net->parameters(), torch::optim::AdamOptions(0.1).amsgrad(true))), "E0706");
  EXPECT_EQ(codeWith(torch::optim::SGD(other->parameters(), 0.1)), "E0706");
  // LibTorch lists a parameter once for each place of its module, and updates it as often.
  nn::Linear layer(4, 4);
  nn::Sequential twice(layer, nn::Tanh(), layer);
  torch::optim::SGD optimizer(twice->parameters(), 0.1);
  const std::string text = abele::test::errorOf([&] { train(twice, optimizer); });
  EXPECT_NE(text.find("E0706 optimizer: the optimizer has 0.weight several times"), std::string::npos) << text;
}

TEST(TorchOptim, MomentsThatStayBehindAreSaid) {
  const Batch batch;
  nn::Sequential net = makeNet();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto warned = [&] {
    testing::internal::CaptureStderr();
    train(net, optimizer);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(warned(), "");
  torch::mse_loss(net->forward(batch.x), batch.y).backward();
  optimizer.step();
  EXPECT_NE(warned().find("its moments stay behind"), std::string::npos);
}

}  // namespace torch_optim_test

// What a compiled program goes on with although the program around it has changed it: warnings name it.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <optional>
#include <string>

#include "abele/abele.h"
#include "two_layers.h"

namespace {

using abele::test::TwoLayers;
using at::Tensor;

abele::Options one() { return abele::Options().threadsPerDevice(1); }

std::string logOf(const std::function<void()>& run) {
  testing::internal::CaptureStderr();
  run();
  return testing::internal::GetCapturedStderr();
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Frozen, AConstantThatIsWrittenLater) {
  Tensor scale = torch::ones({4}), other = torch::ones({4});
  auto model = abele::inferenceModel([&](const Tensor& x) { return x * scale + other; }, one());
  const Tensor x = torch::randn({2, 4});
  EXPECT_EQ(logOf([&] { model(x), model(x); }), "");
  scale.fill_(2);
  const std::string log = logOf([&] { model(x), model(x); });
  EXPECT_EQ(count(log, "first used at frozen_test.cc:34, was written since the model was compiled"), 1u) << log;
  EXPECT_NE(log.find("destroy()"), std::string::npos) << log;
  model.destroy();
  EXPECT_EQ(logOf([&] { EXPECT_TRUE(torch::equal(model(x)[0], x * 2 + 1)); }), "");
}

TEST(Frozen, AConstantThatHasDiedIsNoMatter) {
  std::optional<Tensor> scale = torch::ones({4});
  auto model = abele::inferenceModel([&](const Tensor& x) { return x * *scale; }, one());
  const Tensor x = torch::randn({2, 4});
  model(x);
  scale.reset();
  EXPECT_EQ(logOf([&] { model(x); }), "");
}

TEST(Frozen, WeightsOfAModuleThatTheModelDoesNotHave) {
  TwoLayers net;
  auto training = abele::trainingModel(
      net, [&](const Tensor& x, const Tensor& y) { return torch::mse_loss(net(x), y); }, one(),
      abele::optim::SGD{.lr = 0.1});
  auto inference = abele::inferenceModel([&](const Tensor& x) { return net(x); }, one());
  const Tensor x = torch::randn({2, 4});
  inference(x);
  net->second->bias.data().fill_(1);  // behind torch's back
  EXPECT_EQ(logOf([&] { inference(x); }), "");
  {
    const torch::NoGradGuard no_grad;
    net->second->bias.add_(1);
  }
  EXPECT_NE(logOf([&] { inference(x); }).find("was written since"), std::string::npos);
}

TEST(Frozen, WhichParametersAreTrained) {
  TwoLayers net;
  net->first->weight.requires_grad_(false);
  auto model = abele::trainingModel(
      net, [&](const Tensor& x, const Tensor& y) { return torch::mse_loss(net(x), y); }, one(),
      abele::optim::SGD{.lr = 0.1});
  const Tensor x = torch::randn({2, 4}), y = torch::randn({2, 2});
  EXPECT_EQ(logOf([&] { model(x, y), model(x, y); }), "");
  net->first->weight.requires_grad_(true);
  net->first->bias.requires_grad_(false);
  const std::string log = logOf([&] { model(x, y), model(x, y); });
  EXPECT_EQ(count(log, "requires_grad() of 2 parameters is another one now"), 1u) << log;
}

TEST(Frozen, AModuleInThePlaceOfAnother) {
  TwoLayers net;
  auto model = abele::inferenceModel(net, one());
  const Tensor x = torch::randn({2, 4});
  model(x);
  net->second = net->replace_module("second", torch::nn::Linear(8, 2));
  const std::string log = logOf([&] { model(x), model(x); });
  EXPECT_EQ(count(log, "second.weight is another tensor now"), 1u) << log;
  EXPECT_EQ(count(log, "second.bias is another tensor now"), 1u) << log;
  EXPECT_EQ(count(log, "copyWeightsToDevice()"), 2u) << log;
  model.copyWeightsToDevice();
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(logOf([&] { EXPECT_TRUE(torch::equal(model(x)[0], net->forward(x))); }), "");
}

TEST(Frozen, SettingsOfTorch) {
  TwoLayers net;
  auto model = abele::inferenceModel(net, one());
  const Tensor x = torch::randn({2, 4});
  model(x);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const std::string log = logOf([&] { model(x), model(x); });
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(count(log, "autocast of the CPU was off when the model was compiled, and is BFloat16 now"), 1u) << log;
  EXPECT_EQ(logOf([&] { model(x); }), "");
}

TEST(Frozen, CastsOfWeightsThatAutocastKeeps) {
  TwoLayers net;
  auto model = abele::trainingModel(
      net, [&](const Tensor& x, const Tensor& y) { return torch::mse_loss(net(x).to(at::kFloat), y); }, one(),
      abele::optim::SGD{.lr = 0.1});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const std::string log = logOf([&] { model(torch::randn({2, 4}), torch::randn({2, 2})); });
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(log, "");
}

TEST(Frozen, WhatForwardKeepsForLater) {
  TwoLayers net;
  Tensor kept;
  const auto forward = [&](const Tensor& x) {
    const Tensor h = net->first(x);
    kept = h * 2;
    return net->second(h);
  };
  const Tensor x = torch::randn({2, 4});
  auto model = abele::inferenceModel(net, forward, one());
  const std::string log = logOf([&] { model(x), model(x); });
  EXPECT_EQ(count(log, "keeps a tensor that forward makes at frozen_test.cc:"), 1u) << log;
}

TEST(Frozen, WhatForwardKeepsOfATraining) {
  TwoLayers net;
  Tensor logits;
  auto model = abele::trainingModel(
      net,
      [&](const Tensor& x, const Tensor& y) {
        logits = net(x);
        return torch::mse_loss(logits, y);
      },
      one(), abele::optim::SGD{.lr = 0.1});
  EXPECT_NE(logOf([&] { model(torch::randn({2, 4}), torch::randn({2, 2})); }).find("keeps a tensor"),
            std::string::npos);
}

TEST(Frozen, LossesOnTheWayToTheLoss) {
  TwoLayers net;
  const auto forward = [&](const Tensor& x, const Tensor& y) {
    return abele::identityLoss(torch::mse_loss(net(x), y) / 2, abele::Reduction::kNone);
  };
  auto model = abele::trainingModel(net, forward, one(), abele::optim::SGD{.lr = 0.1});
  EXPECT_EQ(logOf([&] { model(torch::randn({2, 4}), torch::randn({2, 2})); }), "");
}

TEST(Frozen, ConstantsAndResultsMayBeKept) {
  TwoLayers net;
  Tensor mask, result;
  const auto forward = [&](const Tensor& x, const Tensor& y) {
    if (!mask.defined()) mask = torch::ones({2, 2}).triu();  // the same in every call
    result = net(x) * mask;
    return std::tuple(torch::mse_loss(result, y), result);
  };
  auto model = abele::trainingModel(net, forward, one(), abele::optim::SGD{.lr = 0.1});
  EXPECT_EQ(logOf([&] {
              for (int i = 0; i < 3; ++i) model(torch::randn({2, 4}), torch::randn({2, 2}));
            }),
            "");
}

}  // namespace

// Values that a compiled program keeps although the program around it has changed them: warnings name them.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <optional>
#include <string>

#include "abele/abele.h"
#include "two_layers.h"

namespace frozen_test {

namespace nn = torch::nn;
using abele::test::TwoLayers;
using at::Tensor;

struct ActivatedNetImpl : nn::Module {
  ActivatedNetImpl() {
    first = register_module("first", nn::Linear(4, 4));
    act = nn::AnyModule(register_module("act", nn::ReLU()));
  }
  Tensor forward(const Tensor& x) { return act.forward(first(x)); }
  nn::Linear first{nullptr};
  nn::AnyModule act;
};
TORCH_MODULE(ActivatedNet);

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
  EXPECT_EQ(count(log, "first used at frozen_test.cc:46, was written since the model was compiled"), 1u) << log;
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
  net->second->bias.data().fill_(1);  // torch does not count this write
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

TEST(Frozen, RequiresGradIsNoMatterOfInference) {
  TwoLayers net;
  auto model = abele::inferenceModel(net, one());
  const Tensor x = torch::randn({2, 4});
  model(x);
  net->first->weight.requires_grad_(false);
  EXPECT_EQ(logOf([&] { model(x); }), "");
}

// PopTorch's rule, which docs/cpp.md describes.
TEST(Frozen, TrainAndEvalAreNoMatter) {
  nn::Sequential net(nn::Linear(4, 4), nn::Dropout(0.5));
  net->eval();
  auto model = abele::inferenceModel(net, one());
  const Tensor x = torch::randn({2, 4});
  const Tensor expected = model(x)[0];
  net->train();
  EXPECT_EQ(logOf([&] { EXPECT_TRUE(torch::equal(model(x)[0], expected)); }), "");
}

TEST(Frozen, AModuleWithoutTensorsInThePlaceOfAnother) {
  ActivatedNet net;
  auto model = abele::inferenceModel(net, one());
  const Tensor x = torch::randn({2, 4});
  EXPECT_EQ(logOf([&] { model(x), model(x); }), "");
  net->act = nn::AnyModule(net->replace_module("act", nn::Tanh()));
  const std::string log = logOf([&] { model(x), model(x); });
  EXPECT_EQ(
      count(log, "the module act was torch::nn::ReLU() when the model was compiled, and is torch::nn::Tanh() now"), 1u)
      << log;
  model.destroy();
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(logOf([&] { EXPECT_TRUE(torch::equal(model(x)[0], net->forward(x))); }), "");
}

TEST(Frozen, OptionsOfTorchsModules) {
  nn::Sequential net(nn::Linear(4, 4), nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.1)), nn::BatchNorm1d(4));
  auto model = abele::inferenceModel(net, one());
  const Tensor x = torch::randn({2, 4});
  model(x);
  net[1]->as<nn::LeakyReLU>()->options.negative_slope(0.5);
  net[2]->as<nn::BatchNorm1d>()->options.momentum(0.5);
  const std::string log = logOf([&] { model(x), model(x); });
  EXPECT_EQ(count(log,
                  "the module 1 was torch::nn::LeakyReLU(negative_slope=0.1) when the model was compiled, and is "
                  "torch::nn::LeakyReLU(negative_slope=0.5) now"),
            1u)
      << log;
  EXPECT_EQ(count(log, "the module 2 was torch::nn::BatchNorm1d"), 1u) << log;
}

TEST(Frozen, PartsThatComeAndGo) {
  TwoLayers net;
  auto model = abele::inferenceModel(net, one());
  const Tensor x = torch::randn({2, 4});
  model(x);
  net->register_module("between", nn::Linear(8, 8));
  net->first->register_buffer("scale", torch::ones({1}));
  const std::string more = logOf([&] { model(x), model(x); });
  EXPECT_EQ(count(more, "the module between was not there when the model was compiled"), 1u) << more;
  EXPECT_EQ(count(more, "between.weight was not there when the model was compiled"), 1u) << more;
  // Modules in places after a new one are still known.
  net->second = net->replace_module("second", nn::Linear(8, 2));
  EXPECT_EQ(count(logOf([&] { model(x); }), "second.bias is another tensor now"), 1u);
  model.copyWeightsToDevice();
  EXPECT_EQ(logOf([&] { model(x); }), "");
  net->unregister_module("between");
  net->unregister_module("second");
  const std::string fewer = logOf([&] { model(x), model(x); });
  EXPECT_EQ(count(fewer, "the module had 4 parameters and buffers when the model was compiled, and 2 of them"), 1u)
      << fewer;
  EXPECT_EQ(count(fewer, "1 of the 3 modules"), 1u) << fewer;
}

TEST(Frozen, EachProgramHasItsOwn) {
  TwoLayers net;
  Tensor scale = torch::ones({2});
  auto model = abele::inferenceModel(net, [&](const Tensor& x) { return net(x) * scale; }, one());
  const Tensor two = torch::randn({2, 4}), three = torch::randn({3, 4});
  model(two);
  scale.fill_(3);
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(logOf([&] { EXPECT_TRUE(torch::equal(model(three)[0], net->forward(three) * 3)); }), "");
  EXPECT_NE(logOf([&] { model(two); }).find("was written since"), std::string::npos);
}

TEST(Frozen, ALateChangeIsSeenToo) {
  Tensor scale = torch::ones({4});
  auto model = abele::inferenceModel([&](const Tensor& x) { return x * scale; }, one());
  const Tensor x = torch::randn({2, 4});
  for (int i = 0; i < 20; ++i) model(x);
  scale.fill_(2);
  std::string log;
  for (int i = 0; i < 100000 && log.empty(); ++i) log = logOf([&] { model(x); });
  EXPECT_NE(log.find("was written since"), std::string::npos);
}

struct Setting {
  const char* name;
  std::function<void(bool)> set;  // true: sets a value other than torch's; false: restores it
  std::string was, now;
};

TEST(Frozen, SettingsOfTorch) {
  at::Context& context = at::globalContext();
  using Op = at::Float32Op;
  constexpr auto kBackend = at::Float32Backend::MKLDNN;
  const auto precision = [&](Op op, bool other) {
    static const at::Float32Precision before = context.float32Precision(kBackend, op);
    context.setFloat32Precision(kBackend, op, other ? at::Float32Precision::BF16 : before);
  };
  const std::vector<Setting> settings = {
      {"autocast of the CPU", [](bool other) { at::autocast::set_autocast_enabled(at::kCPU, other); }, "off",
       "BFloat16"},
      {"c10::get_default_dtype()",
       [](bool other) { torch::set_default_dtype(caffe2::TypeMeta::fromScalarType(other ? at::kDouble : at::kFloat)); },
       "float", "double"},
      {"at::globalContext().deterministicAlgorithms()",
       [&](bool other) { context.setDeterministicAlgorithms(other, /*warn_only=*/false); }, "false", "true"},
      {"at::globalContext().userEnabledMkldnn()", [&](bool other) { context.setUserEnabledMkldnn(!other); }, "true",
       "false"},
      {"MKLDNN's products", [&](bool other) { precision(Op::MATMUL, other); }, "", ""},
      {"MKLDNN's convolutions", [&](bool other) { precision(Op::CONV, other); }, "", ""},
      {"MKLDNN's recurrent layers", [&](bool other) { precision(Op::RNN, other); }, "", ""},
      {"at::globalContext().userEnabledFlashSDP()", [&](bool other) { context.setSDPUseFlash(!other); }, "true",
       "false"},
      {"at::globalContext().userEnabledMathSDP()", [&](bool other) { context.setSDPUseMath(!other); }, "true", "false"},
  };
  const Tensor x = torch::randn({2, 4});
  for (const Setting& each : settings) {
    TwoLayers net;
    auto model = abele::inferenceModel(net, one());
    EXPECT_EQ(logOf([&] { model(x), model(x); }), "") << each.name;
    each.set(true);
    const std::string log = logOf([&] { model(x), model(x); });
    each.set(false);
    EXPECT_EQ(count(log, "when the model was compiled"), 1u) << log;
    EXPECT_EQ(count(log, each.name), 1u) << log;
    const std::string change = each.was + " when the model was compiled, and is " + each.now + " now";
    EXPECT_TRUE(each.was.empty() || count(log, change) == 1u) << log;
    EXPECT_EQ(logOf([&] { model(x); }), "") << each.name;
  }
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

}  // namespace frozen_test

// Nothing silent: what looks like training and is not, settings without effect, integers and scales.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/torch.h>

#include <sstream>

#include <sys/stat.h>
#include <unistd.h>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace silence_test {

namespace nn = torch::nn;
using abele::test::codeOf;
using at::Tensor;

abele::Options small() { return abele::Options().threadsPerDevice(1); }

template <class Fn>
std::string warningsOf(Fn fn) {
  testing::internal::CaptureStderr();
  fn();
  return testing::internal::GetCapturedStderr();
}

abele::TrainingModel train(nn::Linear net, abele::Options options = small(),
                           const abele::optim::Optimizer& optimizer = abele::optim::SGD{.lr = 0.1}) {
  return abele::trainingModel(
      net, [net](Tensor x, Tensor y) mutable { return torch::mse_loss(net(x), y); }, options, optimizer);
}

const Tensor& x() {
  static const Tensor made = torch::linspace(-1, 1, 12).view({4, 3});
  return made;
}
const Tensor& y() {
  static const Tensor made = torch::linspace(0, 1, 8).view({4, 2});
  return made;
}

TEST(Silence, IntegersOf64BitsComeBackAsTheyAre) {
  constexpr int64_t kLarge = int64_t{1} << 40;
  auto model = abele::inferenceModel(
      [](Tensor t) { return std::vector<Tensor>{t, t + kLarge, torch::arange(kLarge, kLarge + 2), t.sum()}; }, small());
  const Tensor t = torch::tensor({kLarge, int64_t{7}});
  const std::vector<Tensor> found = model(t);
  EXPECT_TRUE(torch::equal(found[0], t));
  EXPECT_TRUE(torch::equal(found[1], t + kLarge));
  EXPECT_TRUE(torch::equal(found[2], torch::arange(kLarge, kLarge + 2)));
  EXPECT_TRUE(torch::equal(found[3], t.sum()));
}

TEST(Silence, WeightsThatTheDeviceDoesNotSee) {
  nn::Linear net(3, 2);
  auto model = train(net, small().shareWeights(false));
  const auto step = [&] { model(x(), y()); };
  EXPECT_EQ(warningsOf(step), "");
  model.copyWeightsToHost();
  EXPECT_EQ(warningsOf(step), "");
  model.copyWeightsToHost();
  {
    torch::NoGradGuard no_grad;
    net->bias.mul_(2).add_(1);
  }
  const std::string text = warningsOf(step);
  EXPECT_NE(text.find("bias"), std::string::npos);
  EXPECT_NE(text.find("model.copyWeightsToDevice()"), std::string::npos);
  EXPECT_EQ(warningsOf(step), "");  // once
}

// As torch::load, Module::to and set_data do it: the next step works there, as eager does.
TEST(Silence, WeightsThatAreGivenOtherMemory) {
  nn::Linear net(3, 2), eager(3, 2);
  {
    torch::NoGradGuard no_grad;
    eager->weight.copy_(net->weight);
    eager->bias.copy_(net->bias);
  }
  torch::optim::SGD sgd(eager->parameters(), 0.1);
  auto model = train(net);
  const auto step = [&] {
    sgd.zero_grad();
    torch::mse_loss(eager(x()), y()).backward();
    sgd.step();
    EXPECT_EQ(warningsOf([&] { model(x(), y()); }), "");
    EXPECT_TRUE(torch::equal(net->weight, eager->weight) && torch::equal(net->bias, eager->bias));
  };
  step();
  std::stringstream file;
  torch::save(net, file);
  step();
  torch::load(net, file);
  file.seekg(0);
  torch::load(eager, file);
  step();
  net->weight.set_data(torch::ones({2, 3}));  // never seen by a step
  model.destroy();
  EXPECT_TRUE(torch::equal(net->weight, torch::ones({2, 3})));
  auto predict = abele::inferenceModel(net, small());
  predict(x());
  net->weight.set_data(torch::zeros({2, 3}));
  EXPECT_TRUE(torch::equal(predict(x())[0], net(x())));
}

// The change is found before anything else changes: the model continues once its weights have their old type.
TEST(Silence, WeightsOfAnotherTypeThanTheCompiledOne) {
  nn::Linear net(3, 2);
  auto model = train(net);
  model(x(), y());
  const Tensor weight = net->weight.detach(), bias = net->bias.detach().clone();
  for (const Tensor& other : {torch::ones({2, 3}, torch::kDouble), torch::ones({2, 4}), torch::ones({6})}) {
    net->weight.set_data(other);
    const std::string text = abele::test::errorOf([&] { model(x(), y()); });
    EXPECT_NE(text.find("E0704 input-changed: weight differs from the tensor that the model was compiled with"),
              std::string::npos)
        << text;
    EXPECT_EQ(codeOf([&] { model.copyWeightsToDevice(); }), "E0704");
    model.copyWeightsToHost();  // nothing to bring: what the module has is the program's
    EXPECT_TRUE(torch::equal(net->weight, other));
  }
  net->weight.set_data(weight);
  EXPECT_TRUE(torch::equal(net->bias, bias));
  const float expected = torch::mse_loss(net(x()), y()).item<float>();
  EXPECT_EQ(model(x(), y())[0].item<float>(), expected);
  net->to(torch::kDouble);
  model.destroy();
  EXPECT_EQ(net->weight.scalar_type(), torch::kDouble);
  EXPECT_EQ(model(x().to(torch::kDouble), y().to(torch::kDouble)).size(), 1u);
}

TEST(Silence, TensorsAndFilesThatNoCallTakes) {
  nn::Linear net(3, 2);
  auto model = train(net);
  const std::vector<Tensor> others = {x().to_sparse(), torch::nested::nested_tensor({x(), x()})};
  const auto refuses = [&] {
    for (const Tensor& other : others) {
      const std::string text = abele::test::errorOf([&] { model(other, y()); });
      EXPECT_NE(text.find("E0708"), std::string::npos) << text;
    }
  };
  refuses();
  EXPECT_EQ(codeOf([&] { model.compile(others[0], y()); }), "E0708");
  model(x(), y());
  refuses();
  const std::string pipe = testing::TempDir() + "/abele_pipe";
  ::unlink(pipe.c_str());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(codeOf([&] { model.trace(pipe); }), "E0712");  // the pipe has no reader
  EXPECT_EQ(codeOf([&] { model.trace(""); }), "E0712");
  ::unlink(pipe.c_str());
}

TEST(Silence, WritesThatAreCopiedToTheDevice) {
  nn::Linear net(3, 2);
  auto model = train(net, small().shareWeights(false));
  model(x(), y());
  model.copyWeightsToHost();
  {
    torch::NoGradGuard no_grad;
    net->weight.fill_(1);
  }
  model.copyWeightsToDevice();
  EXPECT_EQ(warningsOf([&] { model(x(), y()); }), "");
}

// This needs no warning: the second model continues from the first one's weights.
TEST(Silence, ModelsThatShareParameters) {
  nn::Linear shared(3, 2), eager(3, 2);
  {
    const torch::NoGradGuard no_grad;
    eager->weight.copy_(shared->weight);
    eager->bias.copy_(shared->bias);
  }
  torch::optim::SGD optimizer(eager->parameters(), /*lr=*/0.1);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    torch::mse_loss(eager->forward(x()), y()).backward();
    optimizer.step();
  }
  nn::Sequential first(shared), second(shared);
  const auto wrap = [](nn::Sequential net) {
    return abele::trainingModel(
        net, [net](Tensor in, Tensor out) mutable { return torch::mse_loss(net->forward(in), out); }, small(),
        abele::optim::SGD{.lr = 0.1});
  };
  auto one = wrap(first);
  one(x(), y());
  auto two = wrap(second);
  EXPECT_EQ(warningsOf([&] { two(x(), y()); }), "");
  two.copyWeightsToHost();
  EXPECT_TRUE(torch::equal(shared->weight, eager->weight));
  EXPECT_TRUE(torch::equal(shared->bias, eager->bias));
}

TEST(Silence, ATermThatIsNoPartOfTheLoss) {
  nn::Linear net(3, 2);
  auto model = abele::trainingModel(
      net,
      [net](Tensor in, Tensor out) mutable { return torch::mse_loss(net(in), out) + 0.1 * net->weight.pow(2).sum(); },
      small(), abele::optim::SGD{.lr = 0.1});
  const std::string text = warningsOf([&] { model(x(), y()); });
  EXPECT_NE(text.find("plus a term"), std::string::npos);
  EXPECT_NE(text.find("abele::identityLoss"), std::string::npos);
}

TEST(Silence, HooksOfGradientAccumulators) {
  nn::Linear net(3, 2);
  const auto kept = torch::autograd::impl::grad_accumulator(net->weight);  // torch drops it when no reference is left
  kept->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
      [](const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) { return outputs; }));
  auto model = train(net);
  EXPECT_NE(warningsOf([&] { model(x(), y()); }).find("weight has a hook"), std::string::npos);
}

TEST(Silence, LoadersWithoutBatches) {
  const abele::Options options = small().deviceIterations(2);
  const std::string text = warningsOf([&] {
    const abele::DataLoader loader(options, {torch::zeros({7, 3})}, {.batch_size = 4});
    EXPECT_EQ(loader.size(), 0);
  });
  EXPECT_NE(text.find("length 0"), std::string::npos);
  EXPECT_EQ(warningsOf([&] { abele::DataLoader(options, {torch::zeros({8, 3})}, {.batch_size = 4}); }), "");
}

TEST(Silence, SettingsThatAreNotAvailable) {
  const auto wrap = [](const char* name, abele::Setting value) {
    abele::Options options = small();
    options.Training().gradientAccumulation(2);
    options.Popart().set(name, std::move(value));
    return codeOf([&] { train(nn::Linear(3, 2), options); });
  };
  EXPECT_EQ(wrap("accumulationFactor", int64_t{3}), "E0702");
  EXPECT_EQ(wrap("accumulationFactor", int64_t{2}), "");
  EXPECT_EQ(wrap("enableGradientAccumulation", false), "E0702");
  EXPECT_EQ(wrap("accumulationAndReplicationReductionType", int64_t{0}), "E0702");
  EXPECT_EQ(wrap("globalReplicationFactor", int64_t{4}), "E0702");
  EXPECT_EQ(wrap("delayVarUpdates", false), "E0702");
  EXPECT_EQ(wrap("enableNonStableSoftmax", true), "E0702");
  EXPECT_EQ(wrap("groupNormStridedChannelGrouping", true), "");
  EXPECT_EQ(wrap("syntheticDataMode", int64_t{3}), "");
  EXPECT_EQ(wrap("syntheticDataMode", int64_t{4}), "E0702");
  EXPECT_EQ(wrap("enableOutlining", false), "");
  EXPECT_EQ(wrap("dotChecks", std::vector<std::string>{"FWD0"}), "");
}

TEST(Silence, AnOverflowSkipsTheUpdateAndHalvesTheScale) {
  nn::Linear net(nn::LinearOptions(3, 2).bias(false));
  net->to(torch::kHalf);
  abele::Options options = small();
  options.Training().setAutomaticLossScaling(true);
  abele::optim::Optimizer adam = abele::optim::Adam{.lr = 0.1};
  adam.loss_scaling = 1048576;
  const Tensor before = net->weight.detach().clone();
  auto model = train(net, options, adam);
  const Tensor in = torch::ones({4, 3}, torch::kHalf), out = torch::zeros({4, 2}, torch::kHalf);
  model(in, out);
  EXPECT_EQ(model.lossScale(), 524288);
  model.copyWeightsToHost();
  EXPECT_TRUE(torch::equal(net->weight, before));
  for (int step = 0; step < 8; ++step) model(in, out);
  model.copyWeightsToHost();
  EXPECT_TRUE(net->weight.isfinite().all().item<bool>());
  EXPECT_FALSE(torch::equal(net->weight, before));
  EXPECT_LE(model.lossScale(), 32768);
}

TEST(Silence, DampeningIsThatOfTorch) {
  for (const double momentum : {0.0, 0.9}) {
    torch::manual_seed(1);
    nn::Linear net(3, 2), eager(3, 2);
    {
      torch::NoGradGuard no_grad;
      eager->weight.copy_(net->weight);
      eager->bias.copy_(net->bias);
    }
    torch::optim::SGD own(eager->parameters(), torch::optim::SGDOptions(0.1).momentum(momentum).dampening(0.4));
    auto model = train(net, small(), abele::optim::SGD{.lr = 0.1, .momentum = momentum, .dampening = 0.4});
    for (int step = 0; step < 3; ++step) {
      own.zero_grad();
      torch::mse_loss(eager(x()), y()).backward();
      own.step();
      model(x(), y());
    }
    model.copyWeightsToHost();
    EXPECT_TRUE(torch::equal(net->weight, eager->weight)) << momentum;
  }
}

}  // namespace silence_test

// Optimizers of LibTorch that no device implements: their own step() on the host, with the gradients of the devices.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace host_optimizers_test {

namespace nn = torch::nn;
namespace optim = torch::optim;
using abele::test::codeOf;
using abele::test::errorOf;
using at::Tensor;

constexpr int64_t kAccumulation = 4, kRows = 2;

/// Two stages, running statistics, and a parameter that the loss does not reach.
struct NetImpl : nn::Module {
  NetImpl() {
    torch::manual_seed(1);
    first = register_module("first", nn::Linear(4, 6));
    norm = register_module("norm", nn::BatchNorm1d(6));
    second = register_module("second", nn::Linear(6, 3));
    unused = register_parameter("unused", torch::ones(2));
  }
  Tensor forward(const Tensor& x) {
    abele::Block::start("first", 0);
    const Tensor h = torch::tanh(norm(first(x)));
    abele::Block::start("second", 1);
    return second(h);
  }
  nn::Linear first{nullptr}, second{nullptr};
  nn::BatchNorm1d norm{nullptr};
  Tensor unused;
};
TORCH_MODULE(Net);

struct SignsOptions : optim::OptimizerCloneableOptions<SignsOptions> {
  double lr = 0.01;
  double get_lr() const override { return lr; }
  void set_lr(double value) override { lr = value; }
};

/// A user's own optimizer. It reads values, counts the parameters without a gradient, and may fail.
class Signs : public optim::Optimizer {
 public:
  explicit Signs(const std::vector<Tensor>& parameters)
      : Optimizer({optim::OptimizerParamGroup(parameters)}, std::make_unique<SignsOptions>()) {}
  Tensor step(LossClosure /*closure*/ = nullptr) override {
    const torch::NoGradGuard no_grad;
    without_gradient = 0;
    for (optim::OptimizerParamGroup& group : param_groups())
      for (Tensor& parameter : group.params()) {
        if (fail) fail();
        if (!parameter.grad().defined()) {
          ++without_gradient;
          continue;
        }
        largest = std::max(largest, parameter.grad().abs().max().item<double>());
        parameter.sub_(parameter.grad().sign(), group.options().get_lr() / (1 + largest));
      }
    return {};
  }
  double largest = 0;
  int without_gradient = 0;
  std::function<void()> fail;
};

/// A subclass whose step() is its own.
class Halved : public optim::SGD {
 public:
  using SGD::SGD;
  Tensor step(LossClosure /*closure*/ = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : param_groups()[0].params())
      if (parameter.grad().defined()) parameter.mul_(0.5);
    return {};
  }
};

abele::Options options(bool shares = true) {
  at::set_num_threads(1);
  abele::Options made;
  made.threadsPerDevice(1).shareWeights(shares).Training().gradientAccumulation(kAccumulation);
  return made;
}

template <class Optimizer>
abele::TrainingModel train(Net net, Optimizer&& optimizer, const abele::Options& opts = options()) {
  return abele::trainingModel(
      net, [net](Tensor x, Tensor y) mutable { return torch::mse_loss(net(x), y); }, opts,
      std::forward<Optimizer>(optimizer));
}

struct Batch {
  explicit Batch(int64_t seed = 2) {
    torch::manual_seed(seed);
    x = torch::randn({kRows * kAccumulation, 4});
    y = torch::randn({kRows * kAccumulation, 3});
  }
  Tensor x, y;
};

Tensor eagerStep(Net& net, optim::Optimizer& optimizer, const Batch& batch) {
  optimizer.zero_grad();
  Tensor loss;
  for (int64_t k = 0; k < kAccumulation; ++k) {
    loss = torch::mse_loss(net(batch.x.narrow(0, k * kRows, kRows)), batch.y.narrow(0, k * kRows, kRows));
    (loss / kAccumulation).backward();
  }
  optimizer.step();
  return loss.detach();
}

/// The first tensor that differs; "" if none does.
std::string difference(const Net& net, const Net& eager) {
  for (const auto& item : eager->named_parameters())
    if (!torch::equal(item.value(), net->named_parameters()[item.key()])) return item.key();
  for (const auto& item : eager->named_buffers())
    if (!torch::equal(item.value(), net->named_buffers()[item.key()])) return item.key();
  return "";
}

/// Trains with optimizers that make() returns, on devices and in eager. Schedulers change the rates between the steps.
template <class Make>
void expectEager(const Make& make, bool shares = true) {
  Net net, eager;
  const auto ours = make(*net), theirs = make(*eager);
  optim::StepLR our_rate(*ours, 1, 0.5), their_rate(*theirs, 1, 0.5);
  auto model = train(net, *ours, options(shares));
  for (int64_t step = 0; step < 4; ++step) {
    const Batch batch(step);
    const Tensor loss = model(batch.x, batch.y)[0];
    EXPECT_TRUE(torch::equal(loss, eagerStep(eager, *theirs, batch))) << step;
    EXPECT_EQ(difference(net, eager), "") << step;
    our_rate.step();
    their_rate.step();
    if (step != 1) continue;
    model.setOptimizer(*ours);  // has no effect: step() reads the numbers
    const torch::NoGradGuard no_grad;
    for (Net* each : {&net, &eager}) (*each)->second->bias.fill_(0.5);
    model.copyWeightsToDevice();
  }
  EXPECT_TRUE(torch::equal(net->unused, torch::ones(2)));
}

TEST(HostOptimizers, StepsAreEagers) {
  expectEager([](NetImpl& net) { return std::make_unique<optim::Adagrad>(net.parameters(), 0.1); });
  expectEager([](NetImpl& net) {
    return std::make_unique<optim::Adam>(net.parameters(), optim::AdamOptions(0.1).amsgrad(true));
  });
  expectEager([](NetImpl& net) {
    return std::make_unique<optim::AdamW>(net.parameters(), optim::AdamWOptions(0.1).amsgrad(true));
  });
  expectEager([](NetImpl& net) { return std::make_unique<Signs>(net.parameters()); });
  expectEager([](NetImpl& net) { return std::make_unique<Halved>(net.parameters(), 0.1); });
}

TEST(HostOptimizers, SeparateWeightsAreEagers) {
  expectEager([](NetImpl& net) { return std::make_unique<optim::Adagrad>(net.parameters(), 0.1); }, /*shares=*/false);
}

TEST(HostOptimizers, SeveralGroupsAndParametersInNone) {
  expectEager([](NetImpl& net) {
    std::vector<optim::OptimizerParamGroup> groups;
    groups.emplace_back(net.first->parameters(), std::make_unique<optim::AdagradOptions>(0.1));
    groups.emplace_back(net.second->parameters(), std::make_unique<optim::AdagradOptions>(0.2));
    return std::make_unique<optim::Adagrad>(groups, optim::AdagradOptions(0.1));
  });
}

TEST(HostOptimizers, AFunctionUpdatesTheWeights) {
  Net net, eager;
  abele::optim::Optimizer ours = abele::optim::SGD{};
  ours.step_on_host = [&net] {
    const torch::NoGradGuard no_grad;
    for (const Tensor& parameter : net->parameters())
      if (parameter.grad().defined()) parameter.add_(parameter.grad(), -0.1);
  };
  optim::SGD theirs(eager->parameters(), 0.1);
  auto model = train(net, ours);
  for (int64_t step = 0; step < 3; ++step) {
    const Batch batch(step);
    EXPECT_TRUE(torch::equal(model(batch.x, batch.y)[0], eagerStep(eager, theirs, batch))) << step;
    EXPECT_EQ(difference(net, eager), "") << step;
  }
}

TEST(HostOptimizers, GradientsBelongToStepAlone) {
  Net net;
  Signs optimizer(net->parameters());
  auto model = train(net, optimizer);
  net->second->bias.mutable_grad() = torch::ones(3);
  const Batch batch;
  model(batch.x, batch.y);
  EXPECT_EQ(optimizer.without_gradient, 1);  // the parameter that the loss does not reach
  EXPECT_TRUE(torch::equal(net->second->bias.grad(), torch::ones(3)));
  EXPECT_FALSE(net->second->weight.grad().defined());
}

/// Its second call throws, when one parameter is updated.
template <class Thrown>
std::function<void()> failing(Thrown thrown) {
  return [thrown, calls = 0]() mutable {
    if (++calls == 2) throw thrown;
  };
}

TEST(HostOptimizers, TrainingGoesOnAfterAStepThatFailed) {
  for (const bool shares : {true, false}) {
    Net net, eager;
    Signs ours(net->parameters()), theirs(eager->parameters());
    auto model = train(net, ours, options(shares));
    for (int64_t step = 0; step < 4; ++step) {
      const Batch batch(step);
      if (step % 2 == 0) {
        EXPECT_TRUE(torch::equal(model(batch.x, batch.y)[0], eagerStep(eager, theirs, batch))) << step;
      } else {
        ours.fail = step == 1 ? failing(std::runtime_error("no more")) : failing(5);
        theirs.fail = failing(5);
        const std::string text = errorOf([&] { model(batch.x, batch.y); });
        EXPECT_NE(text.find("E0706"), std::string::npos) << text;
        if (step == 1) {
          EXPECT_NE(text.find("no more"), std::string::npos) << text;
        }
        EXPECT_THROW(eagerStep(eager, theirs, batch), int);
        EXPECT_FALSE(net->first->weight.grad().defined());
        ours.fail = theirs.fail = nullptr;
      }
      EXPECT_EQ(difference(net, eager), "") << step;
    }
  }
}

TEST(HostOptimizers, AnInferenceModelSeesTheUpdates) {
  Net net;
  optim::Adagrad optimizer(net->parameters(), 0.1);
  auto model = train(net, optimizer, options(/*shares=*/false));
  auto predict = abele::inferenceModel(
      net, [net](Tensor x) mutable { return net(x); }, abele::Options().threadsPerDevice(1).shareWeights(false));
  const Batch batch;
  const Tensor before = predict(batch.x)[0].clone();
  model(batch.x, batch.y);
  EXPECT_FALSE(torch::equal(predict(batch.x)[0], before));
}

TEST(HostOptimizers, VerifyComparesTheGradients) {
  Net net;
  optim::Adagrad optimizer(net->parameters(), 0.1);
  auto model = train(net, optimizer);
  const Batch batch;
  const abele::Verification proof = abele::verify(model, std::tuple(batch.x, batch.y), std::tuple(batch.x, batch.y));
  EXPECT_TRUE(proof.equal()) << proof.text;
}

TEST(HostOptimizers, WhatTheyCannotDoIsRefused) {
  Net net, other;
  optim::Adagrad optimizer(net->parameters(), 0.1);
  const auto codeWith = [&](const std::function<void(abele::Options&)>& change) {
    return codeOf([&] {
      abele::Options opts = options();
      change(opts);
      train(net, optimizer, opts);
    });
  };
  EXPECT_EQ(codeWith([](abele::Options& opts) { opts.deviceIterations(2); }), "E0706");
  EXPECT_EQ(codeWith([](abele::Options& opts) { opts.Training().setAutomaticLossScaling(true); }), "E0706");
  EXPECT_EQ(codeWith([](abele::Options& opts) { opts.Distributed().configureProcessId(0, 2); }), "E0706");
  optim::LBFGS with_closure(net->parameters(), 0.1);
  const std::string text = errorOf([&] { train(net, with_closure); });
  EXPECT_NE(text.find("E0706"), std::string::npos) << text;
  EXPECT_NE(text.find("closure"), std::string::npos) << text;
  optim::Adagrad of_other(other->parameters(), 0.1);
  EXPECT_EQ(codeOf([&] { train(net, of_other); }), "E0706");
  // It would end before the model.
  EXPECT_EQ(codeOf([&] { train(net, optim::Adagrad(net->parameters(), 0.1)); }), "E0706");
  EXPECT_EQ(codeOf([&] { train(net, std::as_const(optimizer)); }), "E0706");
  auto scaled = abele::optim::fromTorch(optimizer, *net);
  scaled.loss_scaling = 8;
  EXPECT_EQ(codeOf([&] { train(net, scaled); }), "E0706");
  auto model = train(net, optimizer, options().replicationFactor(2));
  model.replicaGrouping("second.bias", abele::CommGroupType::kNoGrouping, 1);
  net->second->bias.set_data(torch::zeros({2, 3}));
  const Batch batch;
  EXPECT_EQ(codeOf([&] { model(batch.x.repeat({2, 1}), batch.y.repeat({2, 1})); }), "E0706");
}

TEST(HostOptimizers, AModelStaysWithHostOrDevices) {
  Net net, other;
  const Batch batch;
  optim::Adagrad on_host(net->parameters(), 0.1), of_other(other->parameters(), 0.1);
  auto model = train(net, on_host);
  model(batch.x, batch.y);
  EXPECT_EQ(codeOf([&] { model.setOptimizer(abele::optim::SGD{}); }), "E0706");
  auto of_devices = train(other, abele::optim::SGD{.lr = 0.1});
  of_devices(batch.x, batch.y);
  EXPECT_EQ(codeOf([&] { of_devices.setOptimizer(of_other); }), "E0706");
  model(batch.x, batch.y);
  of_devices(batch.x, batch.y);
}

TEST(HostOptimizers, FilesWithTheirStateAreRefused) {
  Net net, other;
  const Batch batch;
  optim::Adagrad optimizer(net->parameters(), 0.1);
  auto model = train(net, optimizer);
  model(batch.x, batch.y);
  const std::string path = testing::TempDir() + "/abele_host_optimizers";
  auto of_devices = train(other, abele::optim::SGD{.lr = 0.1});
  of_devices(batch.x, batch.y);
  of_devices.save(path + "_file");
  abele::saveCheckpoint(path, of_devices, 1);
  Net third;
  optim::Adagrad of_third(third->parameters(), 0.1);
  auto fresh = train(third, of_third);
  for (const std::function<void()>& call : std::initializer_list<std::function<void()>>{
           [&] { model.save(path); }, [&] { abele::saveCheckpoint(path, model, 2); },
           [&] { abele::loadCheckpoint(path, model); }, [&] { fresh.loadExecutable(path + "_file"); },
           [&] { model.optimizerState(); }, [&] { model.setOptimizerState({}); }})
    EXPECT_EQ(codeOf(call), "E0706");
  abele::saveWeights(path, model);
  model(batch.x, batch.y);
  std::remove((path + "_file").c_str());
}

}  // namespace host_optimizers_test

// Calls of one model by several threads, and calls from within a call.
#include <gtest/gtest.h>

#include <torch/torch.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <filesystem>
#include <latch>
#include <thread>

#include "../../support/code_of.h"
#include "abele/abele.h"
#include "abele/ops.h"
#include "two_layers.h"

namespace threads_test {

using abele::test::codeOf;
using Net = abele::test::TwoLayers;

abele::Options options() {
  abele::Options made;
  made.threadsPerDevice(1).enforcePipelineMinimum(false);
  return made;
}

abele::TrainingModel train(Net net, const abele::Options& given = options()) {
  return abele::trainingModel(
      net, [net](at::Tensor x, at::Tensor y) mutable { return torch::mse_loss(net(x), y); }, given,
      abele::optim::SGD{.lr = 0.1});
}

const at::Tensor& x() {
  static const at::Tensor tensor = [] {
    torch::manual_seed(2);
    return torch::randn({4, 4});
  }();
  return tensor;
}
const at::Tensor& y() {
  static const at::Tensor tensor = torch::ones({4, 2});
  return tensor;
}

void inThreads(int count, const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
}

TEST(Threads, ShareAnInferenceModel) {
  at::set_num_threads(1);
  Net net;
  auto model = abele::inferenceModel(net, options());
  std::vector<at::Tensor> inputs, expected;
  for (int i = 0; i < 4; ++i) {
    inputs.push_back(torch::randn({4, 4}));
    const torch::NoGradGuard no_grad;
    expected.push_back(net(inputs.back()));
  }
  std::atomic<int> equal = 0;
  inThreads(4, [&](int i) {
    for (int k = 0; k < 50; ++k) equal += torch::equal(model(inputs[i])[0], expected[i]);
  });
  EXPECT_EQ(equal, 200);
}

TEST(Threads, TakeTurnsInTraining) {
  at::set_num_threads(1);
  Net alone, together;
  auto expected = train(alone), model = train(together);
  for (int k = 0; k < 40; ++k) expected(x(), y());
  inThreads(4, [&](int) {
    for (int k = 0; k < 10; ++k) model(x(), y());
  });
  expected.copyWeightsToHost();
  model.copyWeightsToHost();
  for (const auto& p : alone->named_parameters())
    EXPECT_TRUE(torch::equal(together->named_parameters()[p.key()], p.value())) << p.key();
}

TEST(Threads, MayDoEverythingElseMeanwhile) {
  at::set_num_threads(1);
  Net net;
  auto model = train(net);
  model.compile(x(), y());
  const std::string path = testing::TempDir() + "/abele_threads_test.bin";
  std::atomic<bool> done = false;
  std::vector<std::jthread> others;
  const auto meanwhile = [&](std::function<void()> call) {
    others.emplace_back([&done, call = std::move(call)] {
      while (!done) codeOf(call);  // E0705 after destroy()
    });
  };
  meanwhile([&] { model.report(); });
  meanwhile([&] { model.save(path); });
  meanwhile([&] { model.copyWeightsToHost(); });
  meanwhile([&] { model.copyWeightsToDevice(); });
  meanwhile([&] { model.compile(x(), y()); });
  meanwhile([&] { model.destroy(); });
  meanwhile([&] { model.stateDict(); });
  meanwhile([&] { model.setOptimizer(abele::optim::SGD{.lr = 0.1}); });
  meanwhile([&] { model.isCompiled(); });
  meanwhile([&] { abele::simulate(model.costs(), {.training = true}); });
  double loss = 0;
  for (int k = 0; k < 20; ++k) loss = model(x(), y())[0].item<double>();
  done = true;
  others.clear();
  std::filesystem::remove(path);
  EXPECT_TRUE(std::isfinite(loss));
  EXPECT_EQ(model(x(), y()).size(), 1u);
}

TEST(Threads, CallAnInferenceModelWhileAnotherTrains) {
  at::set_num_threads(1);
  Net net;
  auto training = train(net);
  auto first = abele::inferenceModel(net, options());
  std::atomic<bool> done = false;
  bool finite = true;
  std::jthread caller([&] {
    while (!done) {
      auto second = abele::inferenceModel(net, options());
      finite = finite && torch::isfinite(first(x())[0]).all().item<bool>();
      finite = finite && torch::isfinite(second(x())[0]).all().item<bool>();
    }
  });
  for (int k = 0; k < 30; ++k) training(x(), y());
  done = true;
  caller.join();
  EXPECT_TRUE(finite);
  training.copyWeightsToHost();
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(torch::equal(first(x())[0], net(x())));
}

TEST(CallsWithinCalls, OfWhatIsAskedWhetherToStop) {
  Net net;
  abele::Options slow = options();
  slow.deviceIterations(2000);
  auto model = train(net, slow);
  const at::Tensor many = x().repeat({2000, 1}), targets = y().repeat({2000, 1});
  model.compile(many, targets);
  std::string code;
  model.setInterrupt([&] {
    code = codeOf([&] { model.report(); });
    return true;
  });
  const std::string stopped = codeOf([&] {
    for (int k = 0; k < 1000 && code.empty(); ++k) model(many, targets);
  });
  EXPECT_EQ(code, "E0608");
  EXPECT_EQ(stopped, "E0602");
  model.setInterrupt({});
  EXPECT_EQ(model(many, targets).size(), 1u);
}

TEST(CallsWithinCalls, OfHooks) {
  Net net;
  auto model = train(net);
  std::string code;
  const int64_t hook = abele::registerPreCompileHook([&] { code = codeOf([&] { model(x(), y()); }); });
  model.compile(x(), y());
  abele::removeCompileHook(hook);
  EXPECT_EQ(code, "E0608");
  EXPECT_EQ(model(x(), y()).size(), 1u);
}

TEST(CallsWithinCalls, OfForward) {
  std::string code;
  abele::InferenceModel* self = nullptr;
  auto model = abele::inferenceModel(
      [&](at::Tensor value) {
        code = codeOf([&] { (*self)(value); });
        return value + 1;
      },
      options());
  self = &model;
  EXPECT_TRUE(torch::equal(model(x())[0], x() + 1));
  EXPECT_EQ(code, "E0608");
}

// The host function runs on the thread of a worker.
TEST(CallsWithinCalls, OfHostFunctions) {
  std::string code;
  abele::InferenceModel* self = nullptr;
  bool calls = false;
  abele::ops::HostCall host(
      [&](const std::vector<at::Tensor>& values) {
        if (calls) code = codeOf([&] { (*self)(x()); });
        return values;
      },
      "self");
  auto model = abele::inferenceModel(
      [&](at::Tensor value) {
        abele::Block::start("first", 0);
        value = value + 1;
        abele::Block::start("second", 1);
        return host({value})[0];
      },
      options());
  self = &model;
  model.compile(x());
  calls = true;
  EXPECT_TRUE(torch::equal(model(x())[0], x() + 1));
  EXPECT_EQ(code, "E0608");
}

// Each thread is inside of one model and calls the other: one of them gets an error, and the other continues.
TEST(CallsWithinCalls, ThatWaitForEachOther) {
  std::array<abele::InferenceModel*, 2> models{};
  std::array<std::string, 2> codes;
  std::array<bool, 2> calls{};
  std::latch inside(2);
  std::deque<abele::ops::HostCall> hosts;
  for (size_t i = 0; i < 2; ++i)
    hosts.emplace_back(
        [&, i](const std::vector<at::Tensor>& values) {
          if (std::exchange(calls[i], false)) {
            inside.arrive_and_wait();
            codes[i] = codeOf([&] { (*models[1 - i])(x()); });
          }
          return values;
        },
        "host" + std::to_string(i));
  const auto make = [&](size_t i) {
    return abele::inferenceModel(
        [&hosts, i](at::Tensor value) {
          abele::Block::start("first", 0);
          value = value + 1;
          abele::Block::start("second", 1);
          return hosts[i]({value})[0];
        },
        options());
  };
  auto first = make(0), second = make(1);
  models = {&first, &second};
  for (auto* model : models) model->compile(x());
  calls = {true, true};
  inThreads(2, [&](int i) { EXPECT_TRUE(torch::equal((*models[i])(x())[0], x() + 1)); });
  std::sort(codes.begin(), codes.end());
  EXPECT_EQ(codes, (std::array<std::string, 2>{"", "E0608"}));
}

}  // namespace threads_test

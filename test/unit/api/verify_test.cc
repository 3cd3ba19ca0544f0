// abele::verify: it accepts equal models, and names the first operator that differs.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include <torch/library.h>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace verify_test {

using abele::test::codeOf;
namespace nn = torch::nn;
using at::Tensor;

std::thread::id mainThread() {
  static const std::thread::id id = std::this_thread::get_id();
  return id;
}
Tensor ofTheThread(const Tensor& x) { return x * (std::this_thread::get_id() == mainThread() ? 2 : 3); }
TORCH_LIBRARY(abele_verify_test, library) {
  library.def("of_the_thread(Tensor x) -> Tensor");
  library.impl("of_the_thread", c10::DispatchKey::CPU, TORCH_FN(ofTheThread));
}
Tensor callOfTheThread(const Tensor& x) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("abele_verify_test::of_the_thread", "")
                             .typed<Tensor(const Tensor&)>();
  return op.call(x);
}

struct Net {
  Net() {
    torch::manual_seed(1);
    all->push_back(nn::Linear(4, 4));
    all->push_back(nn::Linear(4, 4));
  }
  Tensor operator()(Tensor x) {
    abele::beginBlock("first", 0);
    const Tensor hidden = torch::relu(all[0]->as<nn::Linear>()->forward(x));
    abele::beginBlock("second", 1);
    return all[1]->as<nn::Linear>()->forward(hidden);
  }
  nn::Sequential all;
};

abele::Options training() {
  abele::Options options;
  options.threadsPerDevice(1).randomSeed(3);
  options.Training().gradientAccumulation(3);
  return options;
}
std::tuple<Tensor, Tensor> batch() { return {torch::randn({6, 4}), torch::randn({6, 4})}; }

TEST(Verify, EqualTraining) {
  Net net;
  const auto forward = [&](Tensor x, Tensor y) { return torch::mse_loss(torch::dropout(net(x), 0.5, true), y); };
  std::vector<Tensor> before;
  for (const Tensor& p : net.all->parameters()) before.push_back(p.detach().clone());
  const auto proveFor = [&](const abele::optim::Optimizer& optimizer) {
    auto model = abele::trainingModel(net.all, forward, training(), optimizer);
    const abele::Verification proof = abele::verify(model, batch(), batch());
    EXPECT_TRUE(proof.equal()) << proof.text;
    EXPECT_EQ(proof.batches, 2);
    EXPECT_EQ(proof.micro_batches, 6);
    EXPECT_GT(proof.values, 100);
    EXPECT_TRUE(proof.notes.empty()) << proof.text;
  };
  proveFor(abele::optim::SGD{.lr = 0.1, .momentum = 0.9});
  proveFor(abele::optim::AdamW{.lr = 0.1});
  proveFor(abele::optim::RMSprop{.lr = 0.1});
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(torch::equal(before[i], net.all->parameters()[i]));
}

TEST(Verify, NamesTheKernelThatDiffers) {
  mainThread();
  Net net;
  auto model = abele::inferenceModel(
      net.all, [&](Tensor x) { return callOfTheThread(net(x)); },
      abele::Options().deviceIterations(3).threadsPerDevice(1));
  const abele::Verification proof = abele::verify(model, torch::randn({6, 4}));
  ASSERT_TRUE(proof.difference);
  EXPECT_FALSE(proof);
  EXPECT_EQ(proof.difference->kind, "value");
  EXPECT_EQ(proof.difference->op, "abele_verify_test::of_the_thread");
  EXPECT_EQ(proof.difference->stage, 1);
  EXPECT_EQ(proof.difference->type, "f32[2,4]");
  EXPECT_EQ(proof.difference->elements, 8);
  EXPECT_NE(proof.text.find(proof.difference->found), std::string::npos);
}

TEST(Verify, FindsConstantsThatDiffer) {
  Net net;
  int calls = 0;
  abele::Options options;
  options.checkCapture(false);  // else compiling refuses it
  auto model = abele::inferenceModel(
      net.all,
      [&](Tensor x) {
        const std::vector<float> scale(4, static_cast<float>(++calls));
        return net(x) * torch::from_blob(const_cast<float*>(scale.data()), {4}).clone();
      },
      options);
  const abele::Verification proof = abele::verify(model, torch::randn({2, 4}));
  ASSERT_TRUE(proof.difference);
  EXPECT_EQ(proof.difference->kind, "constant");
  EXPECT_EQ(proof.difference->found, "1");
  EXPECT_EQ(proof.difference->expected, "2");
}

TEST(Verify, RefusesWhatHasNoCounterpart) {
  Net net;
  abele::Options options = training();
  options.replicationFactor(2);
  auto model = abele::trainingModel(net.all, [&](Tensor x, Tensor y) { return torch::mse_loss(net(x), y); }, options);
  EXPECT_EQ(codeOf([&] { abele::verify(model, std::tuple(torch::randn({12, 4}), torch::randn({12, 4}))); }), "E0702");
  EXPECT_EQ(codeOf([&] { abele::verify(model); }), "E0708");
}

}  // namespace verify_test
